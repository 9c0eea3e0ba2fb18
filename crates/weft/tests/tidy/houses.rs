/// The crates with a table. See `floors.rs`.
const HOUSES: &[House] = &[
    House {
        name: "session",
        floors: "
            file log shards
            outbox
            echo replay
        ",
        upward: &[],
    },
    House {
        name: "web",
        floors: "
            date lookup status
            error_page log site
            config
            request
            conditional counters negotiate range
            handle oracle
            reply transcript
            answer
            session
        ",
        upward: &[],
    },
    House {
        name: "event",
        floors: "
            interest set sys table waker
            bitmaps signals
            epoll fdm lap poll rtsig select uring
            mechanism
        ",
        upward: &[],
    },
    House {
        name: "cache",
        floors: "
            number
            store/config store/rule
            store/figures
            store/memory
            store/index
            store/slab
            store/pool
            store/access
            store
            words
            service
            conversation
            binary meta
            text
            session
            transcript udp
        ",
        upward: &[],
    },
    House {
        name: "serve",
        floors: "
            clock metrics limits
            tls
            listen
            signals
            access_log
            counters
            admin
            buffers jobs
            shared
            carriage
            file
            stream
            registry
            blocking
            datagrams
            engine/admission
            engine/pool engine/processors
            engine/serving
            engine/loops/counters engine/loops/threads engine/loops/wire
            engine/loops/bell engine/loops/doors
            engine/loops/gate
            engine/loops/house
            engine/loops
            engine/fiber engine/thread engine/event engine/pipeline engine/netstack
            engine
            server
        ",
        upward: &[],
    },
    House {
        name: "netstack",
        floors: "
            time
            wire
            device neighbor
            ip
            tcp/place tcp/state tcp/rtt tcp/flight tcp/pacing tcp/buffer tcp/secret
            tcp/config tcp/reassembly tcp/slow_start
            tcp/congestion
            tcp/connection
            tcp
            host/table host/wheel host/listener host/time_wait
            host
            host/frames
            station
        ",
        upward: &[],
    },
    House {
        name: "sockets",
        floors: "
            host
            stream
            listener
        ",
        upward: &[],
    },
    House {
        name: "fiber",
        floors: "
            base/atomic base/abort base/by_reference base/cancelled base/clock base/counters
            base/home base/lock base/stamp base/topology
            switch/valgrind switch/locals switch/reason switch/token
            switch/stack
            switch/look switch/resources
            backend
            sched/timer sched/idle sched/mail sched/ready_queue sched/threads
            sched/spans sched/spans_off
            sched/watch
            sched/fiber
            sched/roster
            sched/cluster
            sched/processor
            sched/local sched/waiting sched/wake
            sched/block sched/run
            sched/unparker
            io/path io/lent io/op
            io/accept io/ready io/ring
            io/end
            io/cancel
            io/offload
            io/fork
            turn
            sync
            fs
            net
            spawn/packet spawn/handle
            spawn/processors spawn/steps
            spawn/builder
            spawn/clusters spawn/join_set
            process signal
            inspect/dump inspect/panic_hook
            inspect/debugger inspect/monitor
            runtime
            base switch sched io spawn inspect
        ",
        upward: &[
            (
                "sched/fiber",
                "sched/cluster",
                "a fiber keeps the clusters that it has been in alive, because its handle wakes it \
                 there; and a cluster's queue is made of fibers. One of the two has to name the \
                 other",
            ),
            (
                "sched/processor",
                "io/accept",
                "the listeners that its fibers wait on lie in the processor, as a field that it \
                 makes and does not look into",
            ),
        ],
    },
];
