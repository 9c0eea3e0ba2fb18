// The thesis's programs on goroutines. `peer PROGRAM key=value...` prints one JSON object.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var params = map[string]int{
	"processors": 1, "threads": 100, "ms": 1000, "spots": 50, "words": 100, "touched": 10, "share": 0,
	"exhaust": 0, "semaphore": 0, "transfers": 100, "limit_ms": 5000, "at_once": 1, "bound": 128, "period_ms": 60000,
}

func get(name string) int { return params[name] }

type result map[string]any

func main() {
	for _, arg := range os.Args[2:] {
		key, value, _ := strings.Cut(arg, "=")
		if number, err := strconv.Atoi(value); err == nil {
			params[key] = number
		}
	}
	runtime.GOMAXPROCS(get("processors"))
	programs := map[string]func() result{
		"yield": yield, "cycle": cycle, "churn": churn, "locality": locality, "transfer": transfer, "memory": memory,
		"spawn": spawn, "mutex": mutex, "channel": channel, "crowd": crowd, "idle": idle,
	}
	program, known := programs[os.Args[1]]
	if !known {
		fmt.Fprintln(os.Stderr, "no program", os.Args[1])
		os.Exit(3)
	}
	line, _ := json.Marshal(program())
	fmt.Println(string(line))
}

var stop atomic.Bool

// timed lets the goroutines run and counts their operations.
func timed(start time.Time, total *atomic.Int64) result {
	time.Sleep(time.Duration(get("ms")) * time.Millisecond)
	stop.Store(true)
	seconds := time.Since(start).Seconds()
	return result{"ops": total.Load(), "seconds": seconds}
}

// batch is a local counter that is published now and then, as in the other peers.
type batch struct {
	total *atomic.Int64
	mine  int64
}

func (b *batch) count() bool {
	b.mine++
	if b.mine >= 64 {
		b.total.Add(b.mine)
		b.mine = 0
		return !stop.Load()
	}
	return true
}

// random is xorshift64* (Vigna 2016), the same in all peers.
type random uint64

func newRandom(seed int) random { return random((uint64(seed)+1)*0x9e3779b97f4a7c15 | 1) }

func (r *random) below(limit int) int {
	*r ^= *r >> 12
	*r ^= *r << 25
	*r ^= *r >> 27
	return int(uint64(*r) * 0x2545f4914f6cdd1d >> 33 % uint64(limit))
}

func yield() result {
	var total atomic.Int64
	start := time.Now()
	for i := 0; i < get("threads"); i++ {
		go func() {
			for b := (batch{total: &total}); b.count(); {
				runtime.Gosched()
			}
		}()
	}
	return timed(start, &total)
}

// A place in a ring: a goroutine waits there until it is woken.
type place interface {
	wait()
	wake()
}

// A channel with room for one is Go's semaphore of one.
type channelPlace chan struct{}

func (p channelPlace) wait() { <-p }
func (p channelPlace) wake() { p <- struct{}{} }

// Go cannot park a goroutine by name; a condition with a flag is the nearest to it.
type condPlace struct {
	mutex sync.Mutex
	cond  sync.Cond
	woken bool
}

func (p *condPlace) wait() {
	p.mutex.Lock()
	for !p.woken {
		p.cond.Wait()
	}
	p.woken = false
	p.mutex.Unlock()
}

func (p *condPlace) wake() {
	p.mutex.Lock()
	p.woken = true
	p.mutex.Unlock()
	p.cond.Signal()
}

func cycle() result {
	if get("semaphore") != 0 {
		return rings(func() channelPlace { return make(channelPlace, 1) })
	}
	return rings(func() *condPlace {
		p := &condPlace{}
		p.cond.L = &p.mutex
		return p
	})
}

func rings[P place](newPlace func() P) result {
	const ring = 5
	var total atomic.Int64
	start := time.Now()
	for i := 0; i < get("threads"); i++ {
		var spots [ring]P
		for j := range spots {
			spots[j] = newPlace()
		}
		for j := range spots {
			mine, next := spots[j], spots[(j+1)%ring]
			go func() {
				for b := (batch{total: &total}); ; {
					mine.wait()
					next.wake()
					if !b.count() {
						return
					}
				}
			}()
		}
		spots[0].wake()
	}
	return timed(start, &total)
}

// A channel with room for all that may be posted is Go's counting semaphore.
func churn() result {
	var total atomic.Int64
	spots := make([]chan struct{}, get("spots"))
	for i := range spots {
		spots[i] = make(chan struct{}, get("threads"))
	}
	start := time.Now()
	for i := 0; i < get("threads"); i++ {
		posts := i >= len(spots)
		go func() {
			random := newRandom(i)
			for b := (batch{total: &total}); ; {
				spot := spots[random.below(len(spots))]
				if posts {
					spot <- struct{}{}
				}
				posts = true
				<-spot
				if !b.count() {
					return
				}
			}
		}()
	}
	return timed(start, &total)
}

// A goroutine's array and wake-up channel: made once, as in the other peers, so that the loop allocates nothing.
type locals struct {
	data  atomic.Pointer[[]uint64]
	woken chan struct{}
}

func locality() result {
	var total atomic.Int64
	slots := make([]atomic.Pointer[locals], max(1, get("threads")-get("processors")))
	words, touched, shares := get("words"), get("touched"), get("share") != 0
	start := time.Now()
	for i := 0; i < get("threads"); i++ {
		go func() {
			random := newRandom(i)
			me := &locals{woken: make(chan struct{}, 1)}
			first := make([]uint64, words)
			me.data.Store(&first)
			for b := (batch{total: &total}); ; {
				mine := me.data.Load()
				for range touched {
					(*mine)[random.below(words)]++
				}
				if other := slots[random.below(len(slots))].Swap(me); other != nil {
					if shares {
						me.data.Store(other.data.Swap(mine))
					}
					other.woken <- struct{}{}
				}
				<-me.woken
				if !b.count() {
					return
				}
			}
		}()
	}
	return timed(start, &total)
}

func transfer() result {
	count, exhaust, wanted := get("threads"), get("exhaust") != 0, int64(get("transfers"))
	var epoch, leader, done atomic.Int64
	acks := make([]atomic.Int64, count)
	signals := make([]chan struct{}, count)
	for i := range signals {
		signals[i] = make(chan struct{}, 1)
	}
	random := newRandom(1)
	finished := make(chan struct{})
	lead := func(me int) bool {
		now := epoch.Load()
		for i := range acks {
			for i != me && acks[i].Load() != now {
				if stop.Load() {
					return false
				}
			}
		}
		if done.Add(1) == wanted {
			stop.Store(true)
			close(finished)
		}
		leader.Store(int64(random.below(count)))
		epoch.Add(1)
		if exhaust {
			for i := range signals {
				if i != me {
					select {
					case signals[i] <- struct{}{}:
					default:
					}
				}
			}
		}
		return !stop.Load()
	}
	start := time.Now()
	epoch.Store(1)
	for i := range count {
		go func() {
			for seen := int64(0); !stop.Load(); {
				now := epoch.Load()
				if now == seen {
					if exhaust {
						<-signals[i]
					} else {
						runtime.Gosched()
					}
					continue
				}
				seen = now
				acks[i].Store(now)
				if leader.Load() == int64(i) && !lead(i) {
					return
				}
			}
		}()
	}
	select {
	case <-finished:
	case <-time.After(time.Duration(get("limit_ms")) * time.Millisecond):
	}
	return result{"ops": done.Load(), "seconds": time.Since(start).Seconds()}
}

func status(key string) int64 {
	text, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(text), "\n") {
		if rest, found := strings.CutPrefix(line, key+":"); found {
			number, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return number * 1024
		}
	}
	return 0
}

func memory() result {
	debug.FreeOSMemory()
	resident, virtual := status("VmRSS")+status("VmPTE"), status("VmSize")
	count := get("threads")
	var group, parked sync.WaitGroup
	release := make(chan struct{})
	start := time.Now()
	for range count {
		group.Add(1)
		parked.Add(1)
		go func() {
			parked.Done()
			<-release
			group.Done()
		}()
	}
	parked.Wait()
	started := time.Since(start).Seconds()
	resident, virtual = status("VmRSS")+status("VmPTE")-resident, status("VmSize")-virtual
	start = time.Now()
	close(release)
	group.Wait()
	return result{"ops": count, "seconds": started, "end_seconds": time.Since(start).Seconds(),
		"resident_bytes": resident, "virtual_bytes": virtual}
}

// spawn starts goroutines that do nothing, and waits for them by a WaitGroup.
func spawn() result {
	var total atomic.Int64
	atOnce := get("at_once")
	start := time.Now()
	go func() {
		var ended sync.WaitGroup
		for b := (batch{total: &total}); ; {
			ended.Add(atOnce)
			for range atOnce {
				go ended.Done()
			}
			ended.Wait()
			for range atOnce {
				if !b.count() {
					return
				}
			}
		}
	}()
	return timed(start, &total)
}

func mutex() result {
	var total atomic.Int64
	start := time.Now()
	go func() {
		mutex, number := new(sync.Mutex), 0
		for b := (batch{total: &total}); b.count(); {
			mutex.Lock()
			number++
			mutex.Unlock()
		}
	}()
	return timed(start, &total)
}

func channel() result { return through(1) }
func crowd() result   { return through(4) }

func through(count int) result {
	var total atomic.Int64
	numbers := make(chan int, get("bound"))
	start := time.Now()
	for range count {
		go func() {
			for n := 0; !stop.Load(); n++ {
				numbers <- n
			}
		}()
		go func() {
			for b := (batch{total: &total}); b.count(); {
				<-numbers
			}
		}()
	}
	return timed(start, &total)
}

// cpuTime is that of all threads, in seconds.
func cpuTime() float64 {
	threads, _ := os.ReadDir("/proc/self/task")
	var nanos int64
	for _, thread := range threads {
		text, _ := os.ReadFile("/proc/self/task/" + thread.Name() + "/schedstat")
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			number, _ := strconv.ParseInt(fields[0], 10, 64)
			nanos += number
		}
	}
	return float64(nanos) / 1e9
}

func idle() result {
	count, period := get("threads"), time.Duration(get("period_ms"))*time.Millisecond
	var woken, asleep atomic.Int64
	for at := range count {
		go func() {
			asleep.Add(1)
			time.Sleep(period * time.Duration(at) / time.Duration(count))
			for {
				woken.Add(1)
				time.Sleep(period)
			}
		}()
	}
	for asleep.Load() < int64(count) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	before, cpu, start := woken.Load(), cpuTime(), time.Now()
	time.Sleep(time.Duration(get("ms")) * time.Millisecond)
	return result{"ops": woken.Load() - before, "seconds": time.Since(start).Seconds(), "cpu_seconds": cpuTime() - cpu}
}
