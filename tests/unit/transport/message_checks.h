// What holds for every format of messages between transports.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/resealed.h"

namespace baton::transport {

inline std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// encode(message) is a text, decode(bytes) a StatusOr of the message.
template <typename Message, typename Encode, typename Decode>
void ExpectRoundTrips(const std::vector<Message>& messages,
                      const Encode& encode,
                      const Decode& decode) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string bytes = encode(messages[i]);
    const auto decoded = decode(BytesOf(bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, messages[i]) << "message " << i;
  }
}

// Also with a checksum of their own.
template <typename Message, typename Encode, typename Decode>
void ExpectTruncationsRefused(const std::vector<Message>& messages,
                              const Encode& encode,
                              const Decode& decode) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string bytes = encode(messages[i]);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::string cut = bytes.substr(0, size);
      EXPECT_FALSE(decode(BytesOf(cut)).ok()) << "message " << i << " at " << size;
      if (size >= 8) {
        const std::string resealed = Resealed(cut);
        EXPECT_FALSE(decode(BytesOf(resealed)).ok()) << "message " << i << " at " << size;
      }
    }
  }
}

template <typename Message, typename Encode, typename Decode>
void ExpectMoreBytesRefused(const std::vector<Message>& messages,
                            const Encode& encode,
                            const Decode& decode,
                            size_t most_bytes) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string longer = Resealed(encode(messages[i]) + "x");
    EXPECT_FALSE(decode(BytesOf(longer)).ok()) << "message " << i;
  }
  const std::string oversize(most_bytes + 1, 'x');
  EXPECT_FALSE(decode(BytesOf(oversize)).ok());
}

template <typename Message, typename Encode, typename Decode>
void ExpectFlippedBitsRefused(const std::vector<Message>& messages,
                              const Encode& encode,
                              const Decode& decode) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string bytes = encode(messages[i]);
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_FALSE(decode(BytesOf(flipped)).ok()) << "message " << i << " bit " << bit;
    }
  }
}

}  // namespace baton::transport
