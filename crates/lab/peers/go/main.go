// The thesis's programs on goroutines. `peer PROGRAM key=value...` prints one JSON object.
package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
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
	"exhaust": 0, "transfers": 100, "limit_ms": 5000, "at_once": 1, "bound": 128, "period_ms": 60000,
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

// timed lets the goroutines run and counts what they did.
func timed(start time.Time, total *atomic.Int64) result {
	time.Sleep(time.Duration(get("ms")) * time.Millisecond)
	stop.Store(true)
	seconds := time.Since(start).Seconds()
	return result{"ops": total.Load(), "seconds": seconds}
}

// batch counts locally and publishes now and then, as the other peers do.
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

func cycle() result {
	const ring = 5
	var total atomic.Int64
	start := time.Now()
	for i := 0; i < get("threads"); i++ {
		var spots [ring]chan struct{}
		for j := range spots {
			spots[j] = make(chan struct{}, 1)
		}
		for j := range spots {
			mine, next := spots[j], spots[(j+1)%ring]
			go func() {
				for b := (batch{total: &total}); ; {
					<-mine
					next <- struct{}{}
					if !b.count() {
						return
					}
				}
			}()
		}
		spots[0] <- struct{}{}
	}
	return timed(start, &total)
}

// A semaphore: a count and those who wait, as a buffered channel cannot hold a deficit.
type semaphore struct {
	mutex   sync.Mutex
	count   int
	waiting []chan struct{}
}

func (s *semaphore) wait() {
	s.mutex.Lock()
	s.count--
	if s.count >= 0 {
		s.mutex.Unlock()
		return
	}
	seat := make(chan struct{}, 1)
	s.waiting = append(s.waiting, seat)
	s.mutex.Unlock()
	<-seat
}

func (s *semaphore) post() {
	s.mutex.Lock()
	s.count++
	var seat chan struct{}
	if s.count <= 0 {
		seat = s.waiting[0]
		s.waiting = s.waiting[1:]
	}
	s.mutex.Unlock()
	if seat != nil {
		seat <- struct{}{}
	}
}

func churn() result {
	var total atomic.Int64
	spots := make([]semaphore, get("spots"))
	start := time.Now()
	for i := 0; i < get("threads"); i++ {
		random := rand.New(rand.NewSource(int64(i)))
		posts := i >= len(spots)
		go func() {
			for b := (batch{total: &total}); ; {
				spot := &spots[random.Intn(len(spots))]
				if posts {
					spot.post()
				}
				posts = true
				spot.wait()
				if !b.count() {
					return
				}
			}
		}()
	}
	return timed(start, &total)
}

type locals struct {
	data []uint64
	seat chan *locals
}

func locality() result {
	var total atomic.Int64
	spots := make([]atomic.Pointer[locals], max(1, get("threads")-get("processors")))
	start := time.Now()
	for i := 0; i < get("threads"); i++ {
		random := rand.New(rand.NewSource(int64(i)))
		go func() {
			me := &locals{data: make([]uint64, get("words")), seat: make(chan *locals, 1)}
			for b := (batch{total: &total}); ; {
				for range get("touched") {
					me.data[random.Intn(len(me.data))]++
				}
				seat, data := me.seat, me.data
				other := spots[random.Intn(len(spots))].Swap(&locals{data, seat})
				if other != nil {
					other.seat <- me
					got := <-seat
					if get("share") != 0 {
						me.data = got.data
					}
				} else {
					got := <-seat
					if get("share") != 0 {
						me.data = got.data
					}
				}
				if !b.count() {
					return
				}
			}
		}()
	}
	return timed(start, &total)
}

func transfer() result {
	count, exhaust := get("threads"), get("exhaust") != 0
	var epoch, leader, done atomic.Int64
	acks := make([]atomic.Int64, count)
	seats := make([]chan struct{}, count)
	for i := range seats {
		seats[i] = make(chan struct{}, 1)
	}
	random := rand.New(rand.NewSource(1))
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
		if done.Add(1) == int64(get("transfers")) {
			stop.Store(true)
			close(finished)
		}
		leader.Store(int64(random.Intn(count)))
		epoch.Add(1)
		if exhaust {
			for i := range seats {
				if i != me {
					select {
					case seats[i] <- struct{}{}:
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
						<-seats[i]
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
	resident, virtual := status("VmRSS"), status("VmSize")
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
	resident, virtual = status("VmRSS")-resident, status("VmSize")-virtual
	start = time.Now()
	close(release)
	group.Wait()
	return result{"ops": count, "seconds": started, "end_seconds": time.Since(start).Seconds(),
		"resident_bytes": resident, "virtual_bytes": virtual}
}

// spawn starts goroutines that do nothing, and waits for them by a channel, as one does who wants a result.
func spawn() result {
	var total atomic.Int64
	start := time.Now()
	go func() {
		ended := make(chan struct{}, get("at_once"))
		for b := (batch{total: &total}); ; {
			for range get("at_once") {
				go func() { ended <- struct{}{} }()
			}
			for range get("at_once") {
				<-ended
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
