-- memcached's own proxy before three caches: docs/scale-out.md, "Caches". Clients connect to port 22122; each key belongs to
-- one of the caches. routelib is part of memcached 1.6.40 and later.
local a, b, c = "127.0.0.1:11211", "127.0.0.1:11212", "127.0.0.1:11213"

-- Times in seconds. A cache that failed twice is tried again after half a minute.
settings{ backend_options = { connecttimeout = 0.4, readtimeout = 0.4, retrytimeout = 30, failurelimit = 2 } }

-- The keys of a lost cache go to the others, by one of the pairs without it.
pools{
    all = { backends = { a, b, c } },
    ab = { backends = { a, b } },
    bc = { backends = { b, c } },
    ca = { backends = { c, a } },
}

routes{ default = route_failover{ children = { "all", "ab", "bc", "ca" } } }
