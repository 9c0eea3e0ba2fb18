/// The table of each crate. See `floors.rs`.
const CRATES: &[CrateFloors] = &[
    CrateFloors {
        name: "session",
        floors: "
            file host log network page shards
            outbox
            session
            echo replay
        ",
        upward: &[],
    },
    CrateFloors {
        name: "web",
        floors: "
            date lookup status
            error_page log password
            site
            rate
            config
            request
            challenge client conditional negotiate popular range redirect
            host
            counters
            handle oracle
            reply
            answer
            session
            explain
        ",
        upward: &[],
    },
    CrateFloors {
        name: "http2",
        floors: "
            error field priority
            abuse frame hpack
            request streams
            endpoint
        ",
        upward: &[],
    },
    CrateFloors {
        name: "event",
        floors: "
            interest set sys table waker
            dispatcher
            bitmaps signals
            epoll fdm lap poll rtsig select uring
            mechanism
        ",
        upward: &[],
    },
    CrateFloors {
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
            udp
        ",
        upward: &[],
    },
    CrateFloors {
        name: "serve",
        floors: "
            addresses proxy
            clock metrics limits
            lingering messages
            tls without_tls
            listen
            access_log
            counters
            buffers jobs memory
            shared
            connection/action
            connection/tls connection/without_tls
            connection/send connection/linger
            connection
            file
            stream
            registry
            blocking
            datagrams
            engine/admission
            engine/pool engine/processors
            engine/serving
            engine/reactor/counters engine/reactor/threads engine/reactor/socket
            engine/reactor/budget
            engine/reactor/waker engine/reactor/listeners
            engine/reactor/connection_limit engine/reactor/inbox
            engine/reactor/context
            engine/reactor
            engine/fiber engine/thread engine/event engine/pipeline engine/netstack
            engine
            server
        ",
        upward: &[],
    },
    CrateFloors {
        name: "netstack",
        floors: "
            time
            wire
            device neighbor
            ip
            tcp/position tcp/state tcp/rtt tcp/scoreboard tcp/pacing tcp/buffer tcp/secret
            tcp/config tcp/reassembly tcp/slow_start
            tcp/congestion
            tcp/connection
            tcp
            stack/table stack/wheel stack/listener stack/time_wait
            stack
            stack/frames
            interface_config
        ",
        upward: &[],
    },
    CrateFloors {
        name: "sockets",
        floors: "
            stack
            stream
            listener
        ",
        upward: &[],
    },
    CrateFloors {
        name: "timer",
        floors: "",
        upward: &[],
    },
    CrateFloors {
        name: "fiber",
        floors: "
            base/atomic base/by_reference base/cancelled base/clock base/counters
            base/home base/lock base/report base/stamp base/thread_wait base/topology
            base/abort
            switch/valgrind switch/locals switch/reason switch/token
            switch/stack
            switch/look switch/resources switch/sanitizer
            switch/context
            backend/completion backend/lent backend/ring
            backend/waker
            backend/epoll backend/uring
            backend/probe
            backend
            sched/backlog sched/idle sched/inbox sched/ready_queue sched/threads
            sched/watch
            sched/fiber_ref sched/registry
            sched/cluster
            sched/fiber
            sched/members sched/acceptors
            sched/processor
            sched/local sched/waiting sched/wake
            sched/run
            sched/block
            sched/unparker
            io/path io/lent io/op
            io/accept io/ready
            io/end
            io/cancel io/ring
            io/offload
            io/fork
            turn
            sync
            fs
            net
            spawn/packet spawn/handle
            spawn/processors spawn/stackless
            spawn/builder
            spawn/clusters spawn/join_set
            process signal
            inspect/dump inspect/panic_hook inspect/thread_time
            inspect/debugger inspect/monitor
            runtime
            cookbook tutorial
            base switch sched io spawn inspect
        ",
        upward: &[],
    },
    CrateFloors {
        name: "load",
        floors: "
            random units
            workload
            outcome plan
            agents io protocol verdict
            report worker
            run sweep
        ",
        upward: &[],
    },
    CrateFloors {
        name: "lab",
        floors: "
            measure system
            numbers peers testbed sample
            busy rows
            bench/fault
            bench/generator bench/window
            bench/driven bench/running
            bench card expect
            experiment
            catalog page store
            method report
            compare
        ",
        upward: &[],
    },
    CrateFloors {
        name: "weft",
        floors: "
            failure hints value
            os
            settings/layer
            settings
            settings/file
            settings/arguments settings/layers
            netstack paint
            engine
            common acme
            operate
            command/doctor
            command/cache/config command/cache/daemon command/cache/host command/cache/metrics command/cache/restart command/cache/udp command/cache/verbose command/serve/redirects
            command/cache/prepare command/cache/table command/serve/table
            command/serve/certificates
            command/cache/engine command/cache/extended command/cache/help command/serve/files command/serve/prepare command/serve/terminal
            command/serve/engine
            command/load/values command/serve/explain command/load/progress
            command/load/fileset command/load/metrics
            command/load/args
            command/load/options command/load/output
            command/load/campaign
            command/lab/args command/without_lab
            command/cache command/lab command/load command/serve
            command
            args
            pages
        ",
        upward: &[],
    },
];
