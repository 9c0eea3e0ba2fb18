// A host with gVisor's TCP/IP on an existing interface, by a packet socket: a peer by other authors for hosts of crate
// netstack. The interface must have no kernel address. Frames are lost in both directions, as determined by the seed.
//
//	gvisor [-loss PERMILLE] [-seed N] INTERFACE get URL...                      prints the SHA-256 of each
//	gvisor [-loss PERMILLE] [-seed N] INTERFACE mirror ADDRESS:PORT LENGTH...   sends so many bytes, and gets them back
//	gvisor [-loss PERMILLE] [-seed N] INTERFACE serve FOLDER                    on port 80, until its standard input ends
//
// At the end it prints its counters.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	nic = 1
	mtu = 1500
	// Frames that wait to be sent: more than a window.
	queueLen = 4096
	patience = 30 * time.Second
	// Time for which the host stays after its last connection, as TIME-WAIT has it.
	timeWait = 2 * time.Second
)

var (
	mac      = tcpip.LinkAddress("\x02\x67\x56\x69\x73\x01")
	prefixes = []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("fd00:9::1/64")}
)

func main() {
	log.SetFlags(0)
	loss := flag.Uint("loss", 0, "how many of a thousand frames are lost, each way")
	seed := flag.Uint64("seed", 1, "what decides which")
	flag.Parse()
	if flag.NArg() < 3 {
		log.Fatal("usage: gvisor [-loss PERMILLE] [-seed N] INTERFACE get|mirror|serve WORD...")
	}
	link := channel.New(queueLen, mtu+header.EthernetMinimumSize, mac)
	w, wireErr := openWire(flag.Arg(0), *loss)
	host, hostErr := newHost(ethernet.New(link))
	if err := errors.Join(wireErr, hostErr); err != nil {
		log.Fatal(err)
	}
	go w.receive(link, rand.New(rand.NewPCG(*seed, 0)))
	go w.send(link, rand.New(rand.NewPCG(*seed, 1)))
	does := map[string]func(*stack.Stack, []string) error{"get": get, "mirror": mirror, "serve": serve}[flag.Arg(1)]
	if does == nil {
		log.Fatalf("%q is not get, mirror or serve", flag.Arg(1))
	}
	if err := does(host, flag.Args()[2:]); err != nil {
		log.Fatal(err)
	}
	if *loss > 0 {
		// The last FIN or its acknowledgement may be lost: the peer sends it again, and needs an answer to count its connection as ended.
		time.Sleep(timeWait)
	}
	is := host.Stats().TCP
	fmt.Printf("lost %d retransmitted %d by_sack %d\n", w.lost.Load(), is.Retransmits.Value(), is.SACKRecovery.Value())
}

// get fetches each URL over a new connection.
func get(host *stack.Stack, urls []string) error {
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableCompression: true,
		DisableKeepAlives:  true,
		DialContext:        func(ctx context.Context, _, target string) (net.Conn, error) { return dial(ctx, host, target) },
	}}
	for _, url := range urls {
		reply, err := client.Get(url)
		if err != nil {
			return err
		}
		body := sha256.New()
		length, err := io.Copy(body, reply.Body)
		if err != nil || reply.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s, %d bytes, %v", url, reply.Status, length, err)
		}
		fmt.Printf("%x %s\n", body.Sum(nil), url)
	}
	return nil
}

func mirror(host *stack.Stack, words []string) error {
	for _, word := range words[1:] {
		length, err := strconv.Atoi(word)
		if err = errors.Join(err, mirrorOne(host, words[0], length)); err != nil {
			return fmt.Errorf("%s bytes to %s and back: %v", word, words[0], err)
		}
	}
	return nil
}

// mirrorOne closes its half after sending; the other end closes after returning everything.
func mirrorOne(host *stack.Stack, target string, length int) error {
	conn, err := dial(context.Background(), host, target)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	sent := make([]byte, length)
	rand.NewChaCha8([32]byte{byte(length)}).Read(sent)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		ended <- errors.Join(err, conn.CloseWrite())
	}()
	came, err := io.ReadAll(conn)
	if err != nil {
		return fmt.Errorf("%d had come back: %v", len(came), err)
	}
	if !bytes.Equal(came, sent) {
		return fmt.Errorf("%d came back, and not the same", len(came))
	}
	return <-ended
}

func serve(host *stack.Stack, words []string) error {
	for _, prefix := range prefixes {
		listener, err := gonet.ListenTCP(host, full(prefix.Addr(), 80), protocolOf(prefix.Addr()))
		if err != nil {
			return err
		}
		go http.Serve(listener, http.FileServer(http.Dir(words[0])))
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// dial fails after a host's usual time without an answer, or when the context ends.
func dial(ctx context.Context, host *stack.Stack, target string) (*gonet.TCPConn, error) {
	to, err := netip.ParseAddrPort(target)
	if err != nil {
		return nil, err
	}
	return gonet.DialContextTCP(ctx, host, full(to.Addr(), to.Port()), protocolOf(to.Addr()))
}

func newHost(link stack.LinkEndpoint) (*stack.Stack, error) {
	host := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	if err := host.CreateNIC(nic, link); err != nil {
		return nil, errors.New(err.String())
	}
	for _, prefix := range prefixes {
		address := full(prefix.Addr(), 0).Addr.WithPrefix()
		address.PrefixLen = prefix.Bits()
		own := tcpip.ProtocolAddress{Protocol: protocolOf(prefix.Addr()), AddressWithPrefix: address}
		if err := host.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
			return nil, errors.New(err.String())
		}
		host.AddRoute(tcpip.Route{Destination: address.Subnet(), NIC: nic})
	}
	return host, nil
}

func full(address netip.Addr, port uint16) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(address.AsSlice()), Port: port}
}

func protocolOf(address netip.Addr) tcpip.NetworkProtocolNumber {
	if address.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// A wire carries frames between a host and an interface, and loses some.
type wire struct {
	fd           int
	lossPermille uint
	lost         atomic.Int64
}

func openWire(name string, lossPermille uint) (*wire, error) {
	found, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	// In network byte order. Nothing is received before the bind.
	const everyProtocol = unix.ETH_P_ALL << 8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &wire{fd: fd, lossPermille: lossPermille}, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		// The seed alone must determine the losses.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everyProtocol, Ifindex: found.Index}),
	)
}

func (w *wire) receive(link *channel.Endpoint, chance *rand.Rand) {
	room := make([]byte, 1<<16)
	for {
		length, err := unix.Read(w.fd, room)
		if err != nil && err != unix.EINTR {
			log.Fatalf("no frame can be read: %v", err)
		}
		if err == nil && !w.loses(chance) {
			packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(room[:length])})
			link.InjectInbound(0, packet)
			packet.DecRef()
		}
	}
}

func (w *wire) send(link *channel.Endpoint, chance *rand.Rand) {
	for {
		packet := link.ReadContext(context.Background())
		frame := packet.ToView()
		packet.DecRef()
		if !w.loses(chance) {
			if _, err := unix.Write(w.fd, frame.AsSlice()); err != nil {
				log.Fatalf("a frame of %d bytes cannot be sent: %v", frame.Size(), err)
			}
		}
		frame.Release()
	}
}

func (w *wire) loses(chance *rand.Rand) bool {
	return chance.UintN(1000) < w.lossPermille && w.lost.Add(1) > 0
}
