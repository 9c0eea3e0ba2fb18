// The thesis's programs on libfibre, for `weft lab run … --system`. libfibre is under the GPL, so
// the resulting program is as well. DIR is a copy, with its submodules, built by
// `make -C DIR/src all`:
//
//   g++ -O3 -std=c++17 -pthread -I DIR/src main.cpp -o libfibre-peer DIR/src/libfibre.a
//
// libfibre moves fibers to an idle processor. A ring parks on semaphores, its cheapest way to wait
// for one wake-up.

#include "libfibre/fibre.h"

using Handle = Fibre*;

template <typename F>
static Fibre* start(F f) {
    auto* body = new F(std::move(f));
    void (*run)(F*) = [](F* body) {
        (*body)();
        delete body;
    };
    return (new Fibre(Context::CurrCluster()))->run(run, body);
}

template <typename F>
static void go(unsigned long, F f) {
    start(std::move(f))->detach();
}

static Handle spawn(void (*f)()) { return (new Fibre(Context::CurrCluster()))->run(f); }
static void join(Handle handle) { delete handle; }
static void give_way() { Fibre::yield(); }

struct Semaphore {
    FredSemaphore inner{0};
    void wait() { inner.P(); }
    void post() { inner.V(); }
};

using Notifier = Semaphore;

struct Mutex {
    FredMutex inner;
    void lock() { inner.acquire(); }
    void unlock() { inner.release(); }
};

static void stay() { Fibre::sleep(3600); }

#include "../programs.hpp"

int main(int argc, char** argv) {
    auto program = read_arguments(argc, argv);
    FibreInit(1, get("processors", 1));
    measure(program);
}
