/// Provisional: an arrow that was there before the table, and is to be turned round.
const AS_IT_WAS: &str = "it was there before the table";

/// The crates with a table. See `floors.rs`.
const HOUSES: &[House] = &[
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
            jobs
            shared
            carriage
            file
            stream
            registry
            blocking
            datagrams
            engine/admission
            engine/pool
            engine/serving
            engine/fiber engine/thread
            engine
            server
        ",
        upward: &[],
    },
    House {
        name: "fiber",
        floors: "
            base/atomic base/stamp base/topology base/counters
            switch/valgrind sched/timer
            sched/ready_queue sched/idle switch/token
            switch/stack
            inspect/resources
            switch/look
            sched/waiting
            sched/watch
            backend
            io/accept
            sched/roster
            sched/cluster
            sched/local
            sched/fiber
            sched/fork
            sched/spans sched/spans_off
            sched/processor
            sched/overflow inspect/panic_hook
            sched/cancel
            io/offload
            sched/resize
            sync
            net
            fs
            spawn/steps
            spawn/clusters
            spawn/builder
            spawn/join_set
            process signal
            inspect/dump
            inspect/debugger inspect/monitor
            runtime
            base switch sched io inspect spawn
        ",
        upward: &[
            ("io/accept", "sched/cancel", AS_IT_WAS),
            ("io/accept", "sched/cluster", AS_IT_WAS),
            ("io/accept", "sched/fiber", AS_IT_WAS),
            ("io/accept", "sched/processor", AS_IT_WAS),
            ("backend", "sched/cancel", AS_IT_WAS),
            ("backend", "sched/cluster", AS_IT_WAS),
            ("backend", "sched/fiber", AS_IT_WAS),
            ("backend", "sched/processor", AS_IT_WAS),
            ("backend", "spawn/builder", AS_IT_WAS),
            ("sched/cluster", "sched/fiber", AS_IT_WAS),
            ("sched/cluster", "sched/fork", AS_IT_WAS),
            ("sched/cluster", "sched/processor", AS_IT_WAS),
            ("sched/cluster", "sched/resize", AS_IT_WAS),
            ("spawn/clusters", "spawn/builder", AS_IT_WAS),
            ("sched/fiber", "sched/cancel", AS_IT_WAS),
            ("sched/fiber", "sched/processor", AS_IT_WAS),
            ("sched/fiber", "sched/spans", AS_IT_WAS),
            ("sched/fiber", "spawn/steps", AS_IT_WAS),
            ("sched/fork", "io/offload", AS_IT_WAS),
            ("sched/fork", "sched/processor", AS_IT_WAS),
            ("sched/local", "sched/processor", AS_IT_WAS),
            ("sched/local", "spawn/builder", AS_IT_WAS),
            ("switch/look", "sched/fiber", AS_IT_WAS),
            ("net", "fs", AS_IT_WAS),
            ("net", "spawn/steps", AS_IT_WAS),
            ("io/offload", "spawn/builder", AS_IT_WAS),
            ("sched/processor", "spawn/clusters", AS_IT_WAS),
            ("sched/processor", "inspect/monitor", AS_IT_WAS),
            ("sched/processor", "sched/overflow", AS_IT_WAS),
            ("sched/processor", "sched/resize", AS_IT_WAS),
            ("sched/processor", "spawn/steps", AS_IT_WAS),
            ("sched/resize", "sync", AS_IT_WAS),
            ("sched/roster", "sched/cluster", AS_IT_WAS),
            ("sched/roster", "sched/fiber", AS_IT_WAS),
            ("sched/spans", "sched/processor", AS_IT_WAS),
            ("sched/spans_off", "sched/processor", AS_IT_WAS),
            ("spawn/steps", "spawn/builder", AS_IT_WAS),
            ("sync", "spawn/builder", AS_IT_WAS),
            ("sched/waiting", "sched/fiber", AS_IT_WAS),
            ("sched/waiting", "sched/processor", AS_IT_WAS),
            ("sched/watch", "backend", AS_IT_WAS),
            ("sched/watch", "sched/cluster", AS_IT_WAS),
        ],
    },
];
