// What two workers say to each other, and the bytes that are not put: a fixed binary format, sent
// as UCX active messages.
//
// All numbers are little-endian. A message is
//   u32 magic "BTUX", u16 version, u16 type, u64 connection, body, u64 XXH3-64 of all that
// and has no other bytes. `connection` is the number by which the reader knows the connection, 0 in
// Hello. A number is never used again, so that a late message of an old connection finds nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::transport::ucx {

inline constexpr uint32_t kMessageMagic = 0x58555442;  // "BTUX"
inline constexpr uint16_t kMessageVersion = 2;
inline constexpr size_t kMaxMessageBytes = size_t{64} << 10;
inline constexpr size_t kMaxPieces = 256;
inline constexpr size_t kMaxRkeyBytes = 1024;
inline constexpr size_t kMaxWindowBytes = 64;
inline constexpr size_t kMaxVerdictBytes = 512;
inline constexpr size_t kMaxProbeBytes = size_t{64} << 20;  // of a Request without a window
// With the rest of its message, a little less than UCX's TCP receives at once (UCX_TCP_RX_SEG_SIZE,
// 64 KiB), so that UCX puts nothing together.
inline constexpr size_t kMaxCarriedBytes = size_t{60} << 10;

// Sender, first: `connection` is its own number. u64.
struct Hello {
  uint64_t connection = 0;
  bool operator==(const Hello&) const = default;
};

// Receiver's answer: its own number and its slots. u64, u64, u32, u16, u16 rkey size, rkey.
struct Welcome {
  uint64_t connection = 0;
  uint64_t base = 0;  // remote address of slot 0; the others follow it. 0 without memory
  uint32_t slot_bytes = 0;
  uint16_t slots = 0;
  // By which the sender puts; empty: the slots have no memory, Written carries the bytes.
  std::string rkey{};
  bool operator==(const Welcome&) const = default;
};

// Sender: a transfer is to be written, or with an empty window: bytes are to be dropped, to measure
// the connection. u64, u64, u64, u16 window size, window.
struct Request {
  uint64_t post = 0;  // the sender's number, never used again in this connection
  uint64_t transfer_id = 0;
  uint64_t total_bytes = 0;
  std::string window{};  // Window::descriptor()
  bool operator==(const Request&) const = default;
};

// Receiver: the slot is the post's until Written or Release. u64, u32, u16.
struct Grant {
  uint64_t post = 0;
  uint32_t generation = 0;  // counts the grants of the slot
  uint16_t slot = 0;
  bool operator==(const Grant&) const = default;
};

// Bytes of the window, in the order in which they lie in the slot.
struct Piece {
  uint64_t offset = 0;
  uint32_t size = 0;
  bool operator==(const Piece&) const = default;
};

// Sender: the pieces are in the slot, or here, and it gives the slot back. With `last` the transfer
// is complete and it gives back every slot of the post. u64, u32, u16, u8, u16 count,
// count * (u64, u32), u16 size, bytes.
struct Written {
  uint64_t post = 0;
  uint32_t generation = 0;
  uint16_t slot = 0;
  bool last = false;
  std::vector<Piece> pieces{};  // at least one
  std::string bytes{};          // of all pieces; empty when they were put
  bool operator==(const Written&) const = default;
};

// Receiver, once for every Request: how the transfer ended; with post 0 in place of Welcome, why it
// refuses the connection. u64, u8 absl::StatusCode, u16 size, text.
struct Verdict {
  uint64_t post = 0;
  uint8_t code = 0;
  std::string message{};
  bool operator==(const Verdict&) const = default;
};

// Sender: it gave the post up and nothing that it put can arrive any more. u64.
struct Release {
  uint64_t post = 0;
  bool operator==(const Release&) const = default;
};

// The type of a message is its place in this list, from 1.
using Body = std::variant<Hello, Welcome, Request, Grant, Written, Verdict, Release>;

struct Message {
  uint64_t connection = 0;
  Body body{};
  bool operator==(const Message&) const = default;
};

// Verdicts beyond their limit are cut; other limits are the caller's to keep.
std::string EncodeMessage(const Message& message);
// kInvalidArgument says what is wrong with the bytes.
absl::StatusOr<Message> DecodeMessage(std::span<const std::byte> bytes);

}  // namespace baton::transport::ucx
