/* A closed loop of HTTP requests over io_uring, so cheap that the server is what limits it.
 *
 *   closed_loop PORT CONNECTIONS SECONDS PATH DEPTH
 *
 * Every connection sends DEPTH requests in one write, waits for all replies, and begins again.
 * Replies are counted in bytes and dropped unread (MSG_TRUNC, tcp(7)): the first reply, read on a
 * connection of its own, says how long each is, and any other length is an error. Prints the same
 * line of JSON as wrk.lua. Linux 6.1 or newer.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH_MAX = 64, PATH_MAX_BYTES = 400, HEAD_MAX = 16384, DROP_BYTES = 1 << 20 };
enum { SENDING, RECEIVING };

static struct {
    int fd;
    unsigned *sq_tail, *sq_mask, *cq_head, *cq_tail, *cq_mask;
    unsigned tail, unsubmitted;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} ring;

static struct connection {
    int fd;
    uint64_t left_bytes; /* of the replies under way */
    uint64_t heard_us;   /* when bytes came last */
} *connections;

static struct {
    uint64_t requests, bytes, read_errors, write_errors;
} seen;

static char request[DEPTH_MAX * 512];
static size_t request_bytes;
static unsigned depth;
static uint64_t reply_bytes;
static uint64_t turn_us; /* when this turn of the loop began */

static void fail(const char *what) {
    fprintf(stderr, "closed_loop: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

/* ---- the ring: io_uring(7), without a library */

static void *map(size_t bytes, off_t what) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, what);
    if (at == MAP_FAILED)
        fail("mmap of the ring");
    return at;
}

static void ring_open(unsigned entries) {
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
        .cq_entries = 2 * entries,
    };
    ring.fd = syscall(SYS_io_uring_setup, entries, &params);
    if (ring.fd < 0)
        fail("io_uring_setup (use --generator wrk)");
    char *sq = map(params.sq_off.array + params.sq_entries * 4, IORING_OFF_SQ_RING);
    char *cq = map(params.cq_off.cqes + params.cq_entries * sizeof *ring.cqes, IORING_OFF_CQ_RING);
    ring.sqes = map(params.sq_entries * sizeof *ring.sqes, IORING_OFF_SQES);
    ring.cqes = (void *)(cq + params.cq_off.cqes);
    ring.sq_tail = (void *)(sq + params.sq_off.tail);
    ring.sq_mask = (void *)(sq + params.sq_off.ring_mask);
    ring.cq_head = (void *)(cq + params.cq_off.head);
    ring.cq_tail = (void *)(cq + params.cq_off.tail);
    ring.cq_mask = (void *)(cq + params.cq_off.ring_mask);
    unsigned *array = (void *)(sq + params.sq_off.array);
    for (unsigned i = 0; i < params.sq_entries; i++)
        array[i] = i;
}

/* Submit what is queued and wait for a completion, a tenth of a second at most. */
static void ring_turn(void) {
    struct __kernel_timespec patience = {.tv_nsec = 100000000};
    struct io_uring_getevents_arg argument = {.ts = (uintptr_t)&patience};
    __atomic_store_n(ring.sq_tail, ring.tail, __ATOMIC_RELEASE);
    int submitted = syscall(SYS_io_uring_enter, ring.fd, ring.unsubmitted, 1,
                            IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &argument,
                            sizeof argument);
    if (submitted < 0 && errno != ETIME && errno != EINTR)
        fail("io_uring_enter");
    if (submitted < 0) /* ETIME: all were taken; nothing completed. */
        submitted = ring.unsubmitted;
    ring.unsubmitted -= submitted;
}

/* Two entries per connection at most are queued between two turns: the ring has room for them. */
static struct io_uring_sqe *ring_entry(unsigned index, int what) {
    struct io_uring_sqe *entry = &ring.sqes[ring.tail++ & *ring.sq_mask];
    memset(entry, 0, sizeof *entry);
    entry->fd = connections[index].fd;
    entry->user_data = (uint64_t)index << 1 | what;
    ring.unsubmitted++;
    return entry;
}

/* ---- a connection */

static void receive(unsigned index) {
    static char dropped[1]; /* nothing is written there: MSG_TRUNC */
    struct io_uring_sqe *entry = ring_entry(index, RECEIVING);
    entry->opcode = IORING_OP_RECV;
    entry->addr = (uintptr_t)dropped;
    entry->len = DROP_BYTES;
    entry->msg_flags = MSG_TRUNC;
}

static void ask(unsigned index) {
    struct io_uring_sqe *entry = ring_entry(index, SENDING);
    entry->opcode = IORING_OP_SEND;
    entry->addr = (uintptr_t)request;
    entry->len = request_bytes;
    entry->msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
    entry->flags = IOSQE_CQE_SKIP_SUCCESS;
    connections[index].left_bytes = depth * reply_bytes;
    receive(index);
}

static void received(unsigned index, int result) {
    struct connection *connection = &connections[index];
    if (result <= 0 || (uint64_t)result > connection->left_bytes) {
        seen.read_errors++; /* it stays silent from now on */
        return;
    }
    seen.bytes += result;
    connection->heard_us = turn_us;
    connection->left_bytes -= result;
    if (connection->left_bytes > 0) {
        receive(index);
    } else {
        seen.requests += depth;
        ask(index);
    }
}

static int connected(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || connect(fd, (void *)&address, sizeof address) < 0)
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* How long a reply is, head and body, from one that is read. */
static uint64_t reply_length(int port) {
    static char head[HEAD_MAX + 1];
    size_t length = 0;
    char *end = NULL;
    int fd = connected(port);
    if (write(fd, request, request_bytes / depth) < 0)
        fail("the first request");
    while (end == NULL) {
        ssize_t got = read(fd, head + length, HEAD_MAX - length);
        if (got <= 0)
            fail("the first reply has no end of its head");
        length += got;
        head[length] = 0;
        end = strstr(head, "\r\n\r\n");
    }
    char *field = strcasestr(head, "\r\nContent-Length:");
    if (strncmp(head, "HTTP/1.1 200 ", 13) != 0 || field == NULL || field > end) {
        errno = EPROTO;
        fail("the first reply");
    }
    close(fd);
    return end + 4 - head + strtoull(field + 17, NULL, 10);
}

/* ---- the loop */

static void complete(void) {
    unsigned head = *ring.cq_head, tail = __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE);
    for (; head != tail; head++) {
        struct io_uring_cqe *completion = &ring.cqes[head & *ring.cq_mask];
        if ((completion->user_data & 1) == RECEIVING)
            received(completion->user_data >> 1, completion->res);
        else
            seen.write_errors++; /* successes are not reported */
    }
    __atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
}

/* Connections that heard nothing in the last half of the run: a reply shorter than the first never
 * ends, and a server may have forgotten one. */
static unsigned silent(unsigned count, uint64_t begun_us) {
    unsigned found = 0;
    for (unsigned i = 0; i < count; i++)
        found += connections[i].heard_us < begun_us + (turn_us - begun_us) / 2;
    return found;
}

static void write_request(const char *path, int port) {
    for (unsigned i = 0; i < depth; i++)
        request_bytes += sprintf(request + request_bytes,
                                 "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", path, port);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fputs("usage: closed_loop PORT CONNECTIONS SECONDS PATH DEPTH\n", stderr);
        return 2;
    }
    int port = atoi(argv[1]);
    unsigned count = atoi(argv[2]);
    uint64_t duration_us = atoi(argv[3]) * 1000000ull;
    depth = atoi(argv[5]);
    if (count < 1 || depth < 1 || depth > DEPTH_MAX || strlen(argv[4]) > PATH_MAX_BYTES) {
        fputs("closed_loop: an argument is out of range\n", stderr);
        return 2;
    }
    write_request(argv[4], port);
    reply_bytes = reply_length(port);
    connections = calloc(count, sizeof *connections);
    ring_open(2 * count);

    uint64_t begun_us = now_us();
    for (unsigned i = 0; i < count; i++) {
        connections[i].fd = connected(port);
        ask(i);
    }
    do {
        ring_turn();
        turn_us = now_us();
        complete();
    } while (turn_us - begun_us < duration_us);

    printf("JSON {\"requests\": %lu, \"bytes\": %lu, \"duration_us\": %lu, \"connect_errors\": 0, "
           "\"read_errors\": %lu, \"write_errors\": %lu, \"status_errors\": 0, \"timeouts\": %u}\n",
           seen.requests, seen.bytes, turn_us - begun_us, seen.read_errors, seen.write_errors,
           silent(count, begun_us));
    return 0;
}
