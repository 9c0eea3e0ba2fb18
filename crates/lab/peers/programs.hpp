// Programs of programs.rs, for runtimes in C++. A main.cpp defines the runtime's operations and then
// includes this file: `go(home, f)` starts a fiber (fibers of one home belong together), `spawn(f)`
// one for `join`, `give_way()` yields; a `Semaphore` and a `Notifier` have `wait` and `post`, a
// `Mutex` has `lock` and `unlock`; the main thread calls `stay()` meanwhile.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

static std::map<std::string, uint64_t> parameters;
static std::atomic<bool> is_over{false};
static std::atomic<uint64_t> total{0};

static uint64_t get(const char* name, uint64_t otherwise) {
    auto it = parameters.find(name);
    return it == parameters.end() ? otherwise : it->second;
}

// Reads the command line, and returns the program's name.
static std::string read_arguments(int argc, char** argv) {
    for (int at = 2; at < argc; at++) {
        const char* equals = strchr(argv[at], '=');
        if (equals) parameters[std::string(argv[at], equals - argv[at])] = strtoull(equals + 1, nullptr, 10);
    }
    return argc > 1 ? argv[1] : "";
}

// A local counter that is published now and then, as in all peers.
struct Batch {
    uint64_t mine = 0;
    bool count() {
        if (++mine < 64) return true;
        total.fetch_add(mine, std::memory_order_relaxed);
        mine = 0;
        return !is_over.load(std::memory_order_relaxed);
    }
};

// xorshift64*.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state((seed * 0x9e3779b97f4a7c15u) | 1) {}
    size_t below(size_t limit) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return size_t((state * 0x2545f4914f6cdd1du) >> 33) % limit;
    }
};

static void yields() {
    for (uint64_t at = 0; at < get("threads", 100); at++)
        go(at, [] {
            Batch batch;
            while (batch.count()) give_way();
        });
}

template <typename Signal>
static void ring(uint64_t home) {
    constexpr int places = 5;
    auto spots = std::make_shared<std::array<Signal, places>>();
    for (int at = 0; at < places; at++)
        go(home, [spots, at] {
            Batch batch;
            do {
                (*spots)[at].wait();
                (*spots)[(at + 1) % places].post();
            } while (batch.count());
        });
    go(home, [spots] { (*spots)[0].post(); });
}

static void cycle() {
    for (uint64_t at = 0; at < get("threads", 100); at++)
        get("semaphore", 0) ? ring<Semaphore>(at) : ring<Notifier>(at);
}

static void churn() {
    size_t count = get("spots", 50);
    auto spots = std::make_shared<std::vector<Semaphore>>(count);
    for (uint64_t seed = 0; seed < get("threads", 100); seed++)
        go(seed, [spots, seed, count] {
            Batch batch;
            Random random(seed + 1);
            bool posts = seed >= count;
            do {
                auto& spot = (*spots)[random.below(count)];
                if (posts) spot.post();
                posts = true;
                spot.wait();
            } while (batch.count());
        });
}

struct Waiter {
    Semaphore woken;
    std::atomic<std::vector<uint64_t>*> data;
};

static void locality() {
    uint64_t threads = get("threads", 100), processors = get("processors", 1);
    size_t count = threads > processors ? threads - processors : 1;
    auto slots = std::make_shared<std::vector<std::atomic<Waiter*>>>(count);
    for (uint64_t seed = 0; seed < threads; seed++)
        go(seed, [slots, seed, count] {
            Batch batch;
            Random random(seed + 1);
            size_t words = get("words", 100);
            auto* waiter = new Waiter;
            waiter->data = new std::vector<uint64_t>(words);
            bool shares = get("share", 0);
            uint64_t touched = get("touched", 10);
            do {
                auto* data = waiter->data.load(std::memory_order_acquire);
                for (uint64_t at = 0; at < touched; at++) (*data)[random.below(words)]++;
                if (Waiter* other = (*slots)[random.below(count)].exchange(waiter)) {
                    if (shares) waiter->data = other->data.exchange(data);
                    other->woken.post();
                }
                waiter->woken.wait();
            } while (batch.count());
        });
}

static void spawn_and_join() {
    go(0, [] {
        Batch batch;
        std::vector<Handle> handles(get("at_once", 1));
        for (;;) {
            for (auto& handle : handles) handle = spawn([] {});
            for (auto& handle : handles) {
                join(handle);
                if (!batch.count()) return;
            }
        }
    });
}

static void mutexes() {
    go(0, [] {
        Batch batch;
        Mutex mutex;
        volatile uint64_t value = 0;
        do {
            mutex.lock();
            value = value + 1;
            mutex.unlock();
        } while (batch.count());
    });
}

struct Round {
    std::atomic<uint64_t> epoch{1}, leader{0}, done{0};
    std::vector<std::atomic<uint64_t>> acks;
    std::vector<Semaphore> signals;
    bool exhausts = get("exhaust", 0);
    uint64_t wanted = get("transfers", 100);
    explicit Round(size_t count) : acks(count), signals(count) {}

    void lead(size_t me, Random& random) {
        uint64_t now = epoch;
        for (size_t other = 0; other < acks.size(); other++)
            while (other != me && acks[other] != now) {
                if (is_over) return;
                __builtin_ia32_pause();
            }
        if (++done == wanted) is_over = true;
        leader = random.below(acks.size());
        epoch++;
        if (exhausts)
            for (auto& signal : signals) signal.post();
    }
};

static std::shared_ptr<Round> transfers() {
    auto round = std::make_shared<Round>(get("threads", 100));
    for (size_t me = 0; me < round->acks.size(); me++)
        go(me, [round, me] {
            Random random(me + 1);
            for (uint64_t seen = 0; !is_over;) {
                uint64_t now = round->epoch;
                if (now == seen) {
                    round->exhausts ? round->signals[me].wait() : give_way();
                    continue;
                }
                round->acks[me] = seen = now;
                if (round->leader == me) round->lead(me, random);
            }
        });
    return round;
}

// Starts a program's fibers, and ends the process when the time is over. The caller stays.
static void measure(const std::string& program) {
    using Clock = std::chrono::steady_clock;
    std::shared_ptr<Round> round;
    const std::map<std::string, std::function<void()>> programs = {
        {"yield", yields}, {"cycle", cycle}, {"churn", churn}, {"locality", locality},
        {"spawn", spawn_and_join}, {"mutex", mutexes}, {"transfer", [&] { round = transfers(); }},
    };
    auto it = programs.find(program);
    if (it == programs.end()) _exit(3);
    auto start = Clock::now();
    it->second();
    std::thread([start, round] {
        std::chrono::duration<double> took;
        double limit = double(round ? get("limit_ms", 5000) : get("ms", 1000)) / 1000;
        do {
            std::this_thread::sleep_for(std::chrono::microseconds(100));
            took = Clock::now() - start;
        } while (!is_over && took.count() < limit);
        uint64_t ops = round ? round->done.load() : total.load();
        is_over = true;
        printf("{\"ops\":%llu,\"seconds\":%.9f}\n", (unsigned long long)ops, took.count());
        fflush(stdout);
        _exit(0);
    }).detach();
    for (;;) stay();
}
