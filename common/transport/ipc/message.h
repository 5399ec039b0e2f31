// What two workers on one machine say to each other: a fixed binary format (message_bytes.h, magic
// "BTIP"), one message a packet of a local socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::transport::ipc {

inline constexpr uint32_t kMessageMagic = 0x50495442;  // "BTIP"
inline constexpr uint16_t kMessageVersion = 3;
inline constexpr size_t kMaxMessageBytes = size_t{64} << 10;
inline constexpr size_t kMaxPieces = 1024;
// Of a request, which is kept until the transfer is announced.
inline constexpr size_t kMaxRequestPieces = 128;
inline constexpr size_t kMaxWindowBytes = 64;
inline constexpr size_t kMaxVerdictBytes = 512;
inline constexpr size_t kMaxCarriedBytes = size_t{32} << 10;

// Sender, first. Nothing.
struct Hello {
  bool operator==(const Hello&) const = default;
};

// Receiver's answer. u8.
struct Welcome {
  bool imports_devices = false;  // it would map memory of a device
  bool operator==(const Welcome&) const = default;
};

// Sender: the packet has the descriptor of a block of its memory, which pieces name from now on.
// u32, u64, u8.
struct Export {
  uint32_t block = 0;  // not 0, never used again
  uint64_t size = 0;
  bool of_device = false;
  bool operator==(const Export&) const = default;
};

// Receiver, once for every Export: whether pieces may name the block. u32, u8 absl::StatusCode, u16
// size, text.
struct Imported {
  uint32_t block = 0;
  uint8_t code = 0;
  std::string message{};
  bool operator==(const Imported&) const = default;
};

// Bytes of the window.
struct Piece {
  uint64_t offset = 0;  // in the window
  uint64_t size = 0;
  uint32_t block = 0;   // of the sender's memory; 0: the bytes are in the message
  uint64_t source = 0;  // offset in the block, or 0
  bool operator==(const Piece&) const = default;
};

// Sender: a transfer is to be read. With pieces, all of it, which lie in blocks, where they stay
// until the verdict: the receiver reads them as soon as the transfer is announced, and asks for
// nothing. u64, u64, u64, u16 window size, window, u16 count, count * (u64, u64, u32, u64).
struct Request {
  uint64_t post = 0;  // the sender's number, never used again in this connection
  uint64_t transfer_id = 0;
  uint64_t total_bytes = 0;
  std::string window{};  // Window::descriptor()
  std::vector<Piece> pieces{};
  bool operator==(const Request&) const = default;
};

// Receiver: the transfer, of which it was told no pieces yet, was announced here; they may come.
// u64.
struct Ready {
  uint64_t post = 0;
  bool operator==(const Ready&) const = default;
};

// Sender: the next pieces of a transfer in order, with `last` the rest of it. They stay where they
// are until the verdict. u64, u8, u16 count, count * (u64, u64, u32, u64), u16 size, bytes.
struct Written {
  uint64_t post = 0;
  bool last = false;
  std::vector<Piece> pieces{};  // at least one
  std::string bytes{};          // of the pieces without a block, one behind the other
  bool operator==(const Written&) const = default;
};

// Receiver, once for every Request: how the transfer ended, and nothing of it is read any more.
// u64, u8 absl::StatusCode, u16 size, text.
struct Verdict {
  uint64_t post = 0;
  uint8_t code = 0;
  std::string message{};
  bool operator==(const Verdict&) const = default;
};

// Sender: it gives the post up and waits for the verdict. u64.
struct Release {
  uint64_t post = 0;
  bool operator==(const Release&) const = default;
};

// The type of a message is its place in this list, from 1.
using Message =
    std::variant<Hello, Welcome, Export, Imported, Request, Ready, Written, Verdict, Release>;

// Texts of a status beyond their limit are cut; other limits are the caller's to keep.
std::string EncodeMessage(const Message& message);
// kInvalidArgument says what is wrong with the bytes.
absl::StatusOr<Message> DecodeMessage(std::span<const std::byte> bytes);

}  // namespace baton::transport::ipc
