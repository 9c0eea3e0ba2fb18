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
        upward: &[
            ("engine/fiber", "engine", AS_IT_WAS),
            ("engine/pool", "engine", AS_IT_WAS),
            ("engine/thread", "engine", AS_IT_WAS),
        ],
    },
    House {
        name: "fiber",
        floors: "
            atomic stamp topology valgrind counters timer
            ready_queue idle token
            stack
            resources
            look
            waiting
            watch
            backend
            accept
            roster
            cluster
            local
            fiber
            fork
            spans spans_off
            processor
            overflow panic_hook
            cancel
            offload
            resize
            sync
            net
            fs
            steps
            clusters
            spawn
            join_set
            process signal
            dump
            debugger monitor
            runtime
        ",
        upward: &[
            ("accept", "cancel", AS_IT_WAS),
            ("accept", "cluster", AS_IT_WAS),
            ("accept", "fiber", AS_IT_WAS),
            ("accept", "processor", AS_IT_WAS),
            ("backend", "cancel", AS_IT_WAS),
            ("backend", "cluster", AS_IT_WAS),
            ("backend", "fiber", AS_IT_WAS),
            ("backend", "processor", AS_IT_WAS),
            ("backend", "spawn", AS_IT_WAS),
            ("cluster", "fiber", AS_IT_WAS),
            ("cluster", "fork", AS_IT_WAS),
            ("cluster", "processor", AS_IT_WAS),
            ("cluster", "resize", AS_IT_WAS),
            ("clusters", "spawn", AS_IT_WAS),
            ("fiber", "cancel", AS_IT_WAS),
            ("fiber", "processor", AS_IT_WAS),
            ("fiber", "spans", AS_IT_WAS),
            ("fiber", "steps", AS_IT_WAS),
            ("fork", "offload", AS_IT_WAS),
            ("fork", "processor", AS_IT_WAS),
            ("local", "processor", AS_IT_WAS),
            ("local", "spawn", AS_IT_WAS),
            ("look", "fiber", AS_IT_WAS),
            ("net", "fs", AS_IT_WAS),
            ("net", "steps", AS_IT_WAS),
            ("offload", "spawn", AS_IT_WAS),
            ("processor", "clusters", AS_IT_WAS),
            ("processor", "monitor", AS_IT_WAS),
            ("processor", "overflow", AS_IT_WAS),
            ("processor", "resize", AS_IT_WAS),
            ("processor", "steps", AS_IT_WAS),
            ("resize", "sync", AS_IT_WAS),
            ("roster", "cluster", AS_IT_WAS),
            ("roster", "fiber", AS_IT_WAS),
            ("spans", "processor", AS_IT_WAS),
            ("spans_off", "processor", AS_IT_WAS),
            ("steps", "spawn", AS_IT_WAS),
            ("sync", "spawn", AS_IT_WAS),
            ("waiting", "fiber", AS_IT_WAS),
            ("waiting", "processor", AS_IT_WAS),
            ("watch", "backend", AS_IT_WAS),
            ("watch", "cluster", AS_IT_WAS),
        ],
    },
];
