//! Cost of handing packets to a device, without TCP: the lower bound for a netstack on it. The
//! packets go to an Ethernet address that does not exist, so the other end drops them at once.
//!
//! ```text
//! ip link add c0 type veth peer name s0; ip link set c0 up; ip link set s0 up      as root
//! device_cost KIND:INTERFACE                      tap, packet or xdp, as in --engine netstack:device=…
//! ```

extern crate weftwork_netstack as netstack;

mod segment;

use std::env;
use std::error::Error;
use std::time::{Duration, Instant as Clock};

use netstack::device::name::DeviceName;
use netstack::device::{
    Capabilities, Device, Offload, OutgoingFrame, PartialChecksum, Segmentation, TransmitError,
};
use netstack::ip::{HEADERS_LEN_MAX, IpFields};
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::checksum::Sum;
use netstack::wire::tcp;
use segment::{SEGMENT, TCP_LEN, address, interface};

/// Length of the IP header, which with TCP's is the part of a packet that is not payload.
const IP_LEN: usize = 20;
const LASTS: Duration = Duration::from_secs(1);
const BURST: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let name = env::args().nth(1).ok_or("usage: device_cost KIND:INTERFACE")?;
    let mut devices = name.parse::<DeviceName>()?.open(1)?;
    let device = &mut devices[0];
    let Capabilities { mtu, segmentation_len_max, .. } = device.capabilities();
    let mss = mtu - IP_LEN - TCP_LEN;
    run(device, "a frame for each", mss, mss)?;
    if segmentation_len_max > 0 {
        let payload_len = (segmentation_len_max - IP_LEN - TCP_LEN) / mss * mss;
        run(device, "to be cut by the kernel", mss, payload_len)?;
    }
    Ok(())
}

/// Sends frames of `payload_len` bytes as fast as the device takes them.
fn run(
    device: &mut impl Device,
    what: &str,
    mss: usize,
    payload_len: usize,
) -> Result<(), Box<dyn Error>> {
    let payload = vec![7; payload_len];
    let (headers, offload) = headers(mss, &payload);
    let frame = OutgoingFrame { headers: &headers, payload: &[&payload], offload };
    let mut frames = 0;
    let began = Clock::now();
    while began.elapsed() < LASTS {
        for _ in 0..BURST {
            match device.transmit(Instant::START, &frame) {
                Ok(()) => frames += 1,
                Err(TransmitError::Full) => break,
                Err(error) => return Err(error.into()),
            }
        }
        device.flush(Instant::START)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let packets = (frames * (payload_len / mss)) as f64;
    println!(
        "{:6.0} ns a packet of {mss} bytes, {:5.2} Gbit/s, {what}",
        seconds * 1e9 / packets,
        packets * mss as f64 * 8.0 / seconds / 1e9
    );
    Ok(())
}

/// Headers of a segment, complete unless the device is to cut it.
fn headers(mss: usize, payload: &[u8]) -> (Vec<u8>, Offload) {
    let here = 2;
    let there = 9;
    let mut interface = interface(here, there);
    let fields = IpFields {
        src: address(here),
        dst: address(there),
        dscp: 0,
        ecn: Ecn::NotCapable,
        len: TCP_LEN + payload.len(),
    };
    let mut buffer = [0; HEADERS_LEN_MAX + TCP_LEN];
    let written = interface.write_headers(Instant::START, &fields, &mut buffer);
    let written = written.expect("a route");
    let len = written.len + SEGMENT.emit(&mut buffer[written.len..]);
    let header = &mut buffer[written.len..len];
    let offload = if payload.len() > mss {
        tcp::write_partial_checksum(header, written.pseudo_header);
        let checksum = PartialChecksum { start: written.len as u16, offset: tcp::CHECKSUM_OFFSET };
        Offload::Segmentation(Segmentation {
            checksum,
            is_v6: false,
            segment_len: mss as u16,
            has_cwr: false,
        })
    } else {
        tcp::write_checksum(header, written.pseudo_header, Sum::of(payload));
        Offload::None
    };
    (buffer[..len].to_vec(), offload)
}
