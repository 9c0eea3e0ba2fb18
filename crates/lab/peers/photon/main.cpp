// The thesis's programs on PhotonLibOS's threads, for `weft lab run … --system`. DIR is a copy
// built by `cmake -B build -D PHOTON_ENABLE_LIBCURL=OFF && cmake --build build`:
//
//   g++ -O3 -std=c++17 -I DIR/include main.cpp -o photon-peer DIR/build/output/libphoton.a \
//       -lpthread -laio -lssl -lcrypto -lz -lrt -ldl
//
// Threads stay where they start, Photon's default, unless `steal=1` allows others to steal them.
// Threads of one home start on one processor.

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <photon/thread/stack-allocator.h>
#include <photon/thread/thread11.h>

static constexpr uint64_t STACK = 64 << 10;

// Threads that each processor starts once all are known.
static std::vector<std::vector<std::function<void()>>> to_start;
static bool steals = false;
static std::promise<void> all_is_known;

static void* run(void* f) {
    std::unique_ptr<std::function<void()>> mine((std::function<void()>*)f);
    (*mine)();
    return nullptr;
}

using Handle = photon::join_handle*;

static photon::thread* start(std::function<void()> f) {
    uint64_t flags = steals ? photon::THREAD_ENABLE_WORK_STEALING : 0;
    return photon::thread_create(run, new std::function<void()>(std::move(f)), STACK, 0, flags);
}

static Handle spawn(void (*f)()) {
    auto* body = +[](void* f) -> void* { return ((void (*)())f)(), nullptr; };
    return photon::thread_enable_join(photon::thread_create(body, (void*)f, STACK));
}

static void join(Handle handle) { photon::thread_join(handle); }
static void give_way() { photon::thread_yield(); }

template <typename F>
static void go(uint64_t home, F f) {
    to_start[home % to_start.size()].emplace_back(std::move(f));
}

struct Semaphore {
    photon::semaphore inner{0};
    void wait() { inner.wait(1); }
    void post() { inner.signal(1); }
};

static bool has_one_processor = true;

// Sleep and interrupt, which lose no wake-up on one processor; otherwise a semaphore.
struct Notifier {
    std::atomic<bool> has_token{false};
    photon::thread* waits = nullptr;
    Semaphore semaphore;
    void wait() {
        if (!has_one_processor) return semaphore.wait();
        waits = photon::CURRENT;
        while (!has_token.exchange(false, std::memory_order_acquire)) photon::thread_usleep(-1);
    }
    void post() {
        if (!has_one_processor) return semaphore.post();
        has_token.store(true, std::memory_order_release);
        if (waits) photon::thread_interrupt(waits);
    }
};

using Mutex = photon::mutex;

static void stay() {
    static std::once_flag once;
    std::call_once(once, [] { all_is_known.set_value(); });
    std::this_thread::sleep_for(std::chrono::hours(1));
}

#include "../programs.hpp"

int main(int argc, char** argv) {
    auto program = read_arguments(argc, argv);
    to_start.resize(get("processors", 1));
    has_one_processor = to_start.size() == 1;
    steals = get("steal", 0);
    photon::use_pooled_stack_allocator();
    auto begins = all_is_known.get_future().share();
    for (auto& all : to_start)
        std::thread([&all, begins] {
            begins.wait();
            photon::vcpu_init(steals ? photon::VCPU_ENABLE_ACTIVE_WORK_STEALING |
                                           photon::VCPU_ENABLE_PASSIVE_WORK_STEALING
                                     : 0);
            for (auto& one : all) start(std::move(one));
            photon::thread_usleep(-1);
        }).detach();
    measure(program);
}
