//! The system calls of devices that rustix does not have.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::ifreq;

use crate::wire::ethernet::EthernetAddress;

/// An interface's name as the kernel takes it: NUL-terminated, in 16 bytes. netdevice(7)
pub(super) fn interface_name(name: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let is_right = !name.is_empty() && !name.contains(['\0', '/']) && name.len() < libc::IFNAMSIZ;
    if !is_right {
        let why = format!("{name:?} is not the name of an interface, which has 1 to 15 bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut padded = [0; libc::IFNAMSIZ];
    for (place, byte) in padded.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(padded)
}

/// Attaches a descriptor of `/dev/net/tun` to the interface `name`, creating it if needed:
/// `TUNSETIFF`.
pub(super) fn attach_tun(tun: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<()> {
    let mut request = ifreq {
        ifr_name: interface_name(name)?,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags as libc::c_short },
    };
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which this function owns
    // (Documentation/networking/tuntap.rst).
    let returned = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    checked(returned)
}

/// Sets the offloads that this end of the device accepts: `TUNSETOFFLOAD`.
pub(super) fn set_tun_offload(tun: BorrowedFd<'_>, offload: libc::c_uint) -> io::Result<()> {
    let offload = libc::c_ulong::from(offload);
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    let returned = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, offload) };
    checked(returned)
}

/// Sets the length of the header in front of each frame: `TUNSETVNETHDRSZ`. A persistent interface
/// keeps the length of its last user.
pub(super) fn set_vnet_header_len(tun: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = len as c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one `int`, which this function owns.
    let returned = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) };
    checked(returned)
}

/// Sets the program that picks the queue of each frame: `TUNSETSTEERINGEBPF`.
pub(super) fn set_tun_steering(tun: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let fd = tun.as_raw_fd();
    let program = program.as_raw_fd();
    // SAFETY: TUNSETSTEERINGEBPF reads one `int`, which this function owns.
    checked(unsafe { libc::ioctl(fd, libc::TUNSETSTEERINGEBPF, &raw const program) })
}

/// The longest IP packet of an interface: `SIOCGIFMTU`. netdevice(7)
pub(super) fn mtu_of(name: &str) -> io::Result<usize> {
    let request = ask_interface(name, libc::SIOCGIFMTU)?;
    // SAFETY: the call has succeeded, so it has written the union's `ifru_mtu`; and every bit
    // pattern is an integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or_default())
}

/// Ethernet address of an interface. netdevice(7)
pub(super) fn mac_of(name: &str) -> io::Result<EthernetAddress> {
    let address = hardware_address_of(name)?;
    let mut mac = EthernetAddress::ZERO;
    for (to, from) in mac.0.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok(mac)
}

/// Refuses an interface whose frames do not begin with an Ethernet header, such as that of a tunnel
/// or of PPP.
pub(super) fn expect_ethernet(name: &str) -> io::Result<()> {
    match hardware_address_of(name)?.sa_family {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(()),
        _ => {
            let why = format!(
                "{name} carries no Ethernet frames; name a network card, a veth or the like"
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
    }
}

/// Kind and address of an interface: `SIOCGIFHWADDR`. netdevice(7)
fn hardware_address_of(name: &str) -> io::Result<libc::sockaddr> {
    let request = ask_interface(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: the call has succeeded, so it has written the union's `ifru_hwaddr`; and every bit
    // pattern is a `sockaddr`.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr })
}

/// Name of the interface's driver: `ETHTOOL_GDRVINFO` in `linux/ethtool.h`.
pub(super) fn driver_of(name: &str) -> io::Result<String> {
    const GET_DRIVER_INFO: u32 = 3;
    let mut info = DriverInfo { command: GET_DRIVER_INFO, driver: [0; 32], rest: [0; 160] };
    // SAFETY: ETHTOOL_GDRVINFO reads and writes one `struct ethtool_drvinfo`.
    unsafe { ask_driver(name, &mut info)? };
    let name = info.driver.split(|&byte| byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// Number of the interface's receive queues, if its driver tells: `ETHTOOL_GCHANNELS` in
/// `linux/ethtool.h`.
pub(super) fn receive_queues_of(name: &str) -> io::Result<usize> {
    const GET_CHANNELS: u32 = 0x3c;
    let mut channels = Channels { command: GET_CHANNELS, most: [0; 4], now: [0; 4] };
    // SAFETY: ETHTOOL_GCHANNELS reads and writes one `struct ethtool_channels`.
    unsafe { ask_driver(name, &mut channels)? };
    let [receiving, _, _, combined] = channels.now;
    Ok(receiving as usize + combined as usize)
}

/// `struct ethtool_channels`: for receiving, for transmitting, for other things, for both.
#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    now: [u32; 4],
}

/// Asks the driver of an interface: `SIOCETHTOOL`. netdevice(7)
///
/// # Safety
///
/// `question` is the C struct that its command reads and writes.
unsafe fn ask_driver<T>(name: &str, question: &mut T) -> io::Result<()> {
    let any = any_socket()?;
    let mut request = ifreq {
        ifr_name: interface_name(name)?,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut *question).cast() },
    };
    let fd = any.as_fd().as_raw_fd();
    // SAFETY: SIOCETHTOOL reads one `ifreq`, which this function owns, and reads and writes what
    // that points to, which is borrowed and, as the caller promises, what the command has.
    checked(unsafe { libc::ioctl(fd, libc::SIOCETHTOOL, &raw mut request) })
}

/// Asks for a property of an interface, which the answer's union has.
fn ask_interface(name: &str, what: libc::c_ulong) -> io::Result<ifreq> {
    let any = any_socket()?;
    let mut request = ifreq {
        ifr_name: interface_name(name)?,
        // The longest member that is read here, so that no byte of it is without a value.
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_hwaddr: libc::sockaddr { sa_family: 0, sa_data: [0; 14] },
        },
    };
    let fd = any.as_fd().as_raw_fd();
    // SAFETY: SIOCGIFMTU and SIOCGIFHWADDR, which the callers in this file ask for, read the name
    // and write one member of the union of one `ifreq`, which this function owns.
    let returned = unsafe { libc::ioctl(fd, what, &raw mut request) };
    checked(returned)?;
    Ok(request)
}

/// Socket for requests about interfaces.
fn any_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketType, socket};
    Ok(socket(AddressFamily::INET, SocketType::DGRAM, None)?)
}

fn checked(returned: c_int) -> io::Result<()> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Opens a non-blocking packet socket. packet(7)
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it receives nothing until it is bound: no frame of another interface.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    // Frames that the kernel's end sends are not for this socket; members get each frame once.
    set_packet_option(socket.as_fd(), libc::PACKET_IGNORE_OUTGOING, 1)?;
    set_packet_option(socket.as_fd(), libc::PACKET_VNET_HDR, 1)?;
    Ok(socket)
}

/// Gives a packet socket a receive ring of `slots` slots of `slot_len` bytes each. Longer frames go
/// into its queue.
pub(super) fn set_packet_ring(
    socket: BorrowedFd<'_>,
    block_len: usize,
    slot_len: usize,
    slots: usize,
) -> io::Result<()> {
    let version = libc::tpacket_versions::TPACKET_V2 as c_int;
    set_packet_option(socket, libc::PACKET_VERSION, version)?;
    set_packet_option(socket, libc::PACKET_COPY_THRESH, 1)?;
    let request = libc::tpacket_req {
        tp_block_size: block_len as u32,
        tp_block_nr: (slots * slot_len / block_len) as u32,
        tp_frame_size: slot_len as u32,
        tp_frame_nr: slots as u32,
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// Number of frames that a packet socket dropped since the last call.
pub(super) fn packet_drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    /// An option that libc lacks.
    const PACKET_STATISTICS: c_int = 6;
    let none = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let counted = get_option(socket, libc::SOL_PACKET, PACKET_STATISTICS, none)?;
    Ok(counted.tp_drops)
}

/// Number of frames that an AF_XDP socket dropped.
pub(super) fn xdp_drops(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let counted = rustix::net::sockopt::xdp_statistics(socket)?;
    Ok(counted.rx_dropped + counted.rx_ring_full.unwrap_or(0))
}

/// Binds a packet socket to an interface.
pub(super) fn bind_packet(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: interface as c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: bind(2) reads `len` bytes of the address, which lives until the end of the call.
    let returned = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    checked(returned)?;
    listen_to_all(socket, interface as c_int)
}

/// A group of packet sockets that has no member yet. The kernel gives it a number that no other
/// group of the network namespace has: process ids differ only within a PID namespace.
pub(super) const NEW_GROUP: c_int =
    ((PACKET_FANOUT_CBPF | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16) as c_int;

/// A program picks the member for each frame: a constant that libc lacks.
const PACKET_FANOUT_CBPF: u32 = 6;

/// Makes a packet socket a member of a group, each of which gets some of the flows. Returns the
/// group, for others to join. packet(7), `PACKET_FANOUT`
pub(super) fn join_group(socket: BorrowedFd<'_>, group: c_int) -> io::Result<c_int> {
    set_packet_option(socket, libc::PACKET_FANOUT, group)?;
    get_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, 0)
}

/// Sets the classic program that picks the member of a socket's group for each frame: its result
/// modulo the number of members; the first that joined has 0.
pub(super) fn set_group_program(
    socket: BorrowedFd<'_>,
    rule: &mut [libc::sock_filter],
) -> io::Result<()> {
    /// An option that libc lacks.
    const PACKET_FANOUT_DATA: c_int = 22;
    let program = libc::sock_fprog {
        len: rule.len() as u16,
        // It is borrowed until the kernel has checked and copied it, in the call below.
        filter: rule.as_mut_ptr(),
    };
    set_option(socket, libc::SOL_PACKET, PACKET_FANOUT_DATA, &program)
}

/// Attaches a kernel program that selects the frames of a packet socket. socket(7)
pub(super) fn attach_program(socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    /// An option that libc lacks.
    const SO_ATTACH_BPF: c_int = 50;
    set_option(socket, libc::SOL_SOCKET, SO_ATTACH_BPF, &program.as_raw_fd())
}

/// Makes a packet socket drop frames with a VLAN tag. Documentation/networking/filter.rst
pub(super) fn drop_tagged(socket: BorrowedFd<'_>) -> io::Result<()> {
    const HAS_TAG: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
    let instruction = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, HAS_TAG),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        // It lives until the kernel has checked and copied it, in the call below.
        filter: filter.as_mut_ptr(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Receives frames for other Ethernet addresses as well: the netstack has one of its own.
fn listen_to_all(socket: BorrowedFd<'_>, index: c_int) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

fn set_packet_option(socket: BorrowedFd<'_>, option: c_int, value: c_int) -> io::Result<()> {
    set_option(socket, libc::SOL_PACKET, option, &value)
}

/// Sets an option whose value is a C struct or an integer.
pub(super) fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value = (&raw const *value).cast();
    // SAFETY: setsockopt(2) reads `len` bytes of the value, which is borrowed, and whose type the
    // callers in this file choose as the option has it.
    checked(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) })
}

/// Asks for an option whose value is a C struct of integers, or an integer. Bytes that the kernel
/// does not write stay as they are.
fn get_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    mut value: T,
) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let at = (&raw mut value).cast();
    // SAFETY: getsockopt(2) writes at most `len` bytes to the value, which this function owns, and
    // whose type the callers in this file choose so that every bit pattern is one.
    checked(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, at, &raw mut len) })?;
    Ok(value)
}

/// The number of an interface.
pub(super) fn index_of(name: &str) -> io::Result<u32> {
    interface_name(name)?;
    Ok(rustix::net::netdevice::name_to_index(any_socket()?, name)?)
}

/// Frames that the kernel takes with one call in copy mode: an option that libc lacks.
pub(super) const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// Tells the kernel that there are frames in the transmit ring.
pub(super) fn kick(socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::net::send(socket, &[], rustix::net::SendFlags::DONTWAIT).map(|_| ())
}
