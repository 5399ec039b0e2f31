#include <xxhash.h>

#include <span>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/transport/ucx/message.h"

namespace baton::transport::ucx {
namespace {

using testing::HasSubstr;

std::vector<Message> OneOfEach() {
  return {
      {.connection = 0, .body = Hello{.connection = 77}},
      {.connection = 77,
       .body = Welcome{.connection = 9,
                       .base = 0x7fff00001000,
                       .slot_bytes = 1 << 20,
                       .slots = 8,
                       .rkey = std::string("\0key", 4)}},
      {.connection = 77, .body = Welcome{.connection = 9, .slot_bytes = 1 << 15, .slots = 8}},
      {.connection = 9,
       .body =
           Request{
               .post = 1, .transfer_id = 5, .total_bytes = 300, .window = std::string(24, 'w')}},
      {.connection = 77, .body = Grant{.post = 1, .generation = 3, .slot = 7}},
      {.connection = 9,
       .body = Written{.post = 1,
                       .generation = 3,
                       .slot = 7,
                       .last = true,
                       .pieces = {{.offset = 0, .size = 100}, {.offset = 4096, .size = 200}}}},
      {.connection = 9,
       .body = Written{.post = 1,
                       .generation = 3,
                       .slot = 7,
                       .pieces = {{.offset = 0, .size = 2}, {.offset = 9, .size = 3}},
                       .bytes = std::string("\0byte", 5)}},
      {.connection = 77, .body = Verdict{.post = 1, .code = 9, .message = "withdrawn"}},
      {.connection = 9, .body = Release{.post = 1}},
  };
}

absl::StatusOr<Message> Decode(const std::string& bytes) {
  return DecodeMessage(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

// With the checksum that belongs to what is before it.
std::string Sealed(std::string bytes) {
  bytes.resize(bytes.size() - 8);
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(checksum >> (8 * i) & 0xff));
  }
  return bytes;
}

TEST(UcxMessageTest, EveryTypeSurvivesARoundTrip) {
  for (const Message& message : OneOfEach()) {
    const auto decoded = Decode(EncodeMessage(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, message) << message.body.index();
  }
}

TEST(UcxMessageTest, BytesAreThoseOfTheFormat) {
  const std::string bytes = EncodeMessage({.connection = 9,
                                           .body = Written{.post = 0x0102030405060708,
                                                           .generation = 3,
                                                           .slot = 7,
                                                           .last = true,
                                                           .pieces = {{.offset = 4096, .size = 3}},
                                                           .bytes = "abc"}});
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(0, bytes.size() - 8)),
            "42545558"          // magic
            "0200"              // version
            "0500"              // type
            "0900000000000000"  // connection
            "0807060504030201"  // post
            "03000000"          // generation
            "0700"              // slot
            "01"                // last
            "0100"              // pieces
            "0010000000000000"  // offset
            "03000000"          // size
            "0300"              // bytes
            "616263");
  EXPECT_EQ(Sealed(bytes), bytes);
}

TEST(UcxMessageTest, EveryTruncationIsRefusedEvenWithItsOwnChecksum) {
  for (const Message& message : OneOfEach()) {
    const std::string bytes = EncodeMessage(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(Decode(bytes.substr(0, size)).ok()) << message.body.index() << " at " << size;
      if (size >= 8) {
        EXPECT_FALSE(Decode(Sealed(bytes.substr(0, size))).ok())
            << message.body.index() << " at " << size;
      }
    }
  }
}

TEST(UcxMessageTest, BytesBehindTheBodyAreRefused) {
  for (const Message& message : OneOfEach()) {
    EXPECT_FALSE(Decode(Sealed(EncodeMessage(message) + "x")).ok());
  }
  EXPECT_FALSE(Decode(std::string(kMaxMessageBytes + 1, 'x')).ok());
}

TEST(UcxMessageTest, EveryFlippedBitIsRefused) {
  for (const Message& message : OneOfEach()) {
    const std::string bytes = EncodeMessage(message);
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_FALSE(Decode(flipped).ok()) << message.body.index() << " bit " << bit;
    }
  }
}

TEST(UcxMessageTest, AnotherVersionIsNamed) {
  std::string bytes = EncodeMessage(OneOfEach().front());
  bytes[4] = 1;
  EXPECT_THAT(std::string(Decode(Sealed(bytes)).status().message()), HasSubstr("version 1"));
}

TEST(UcxMessageTest, UnknownTypesAreRefused) {
  for (const int type : {0, 8, 255}) {
    std::string bytes = EncodeMessage(OneOfEach().front());
    bytes[6] = static_cast<char>(type);
    EXPECT_THAT(std::string(Decode(Sealed(bytes)).status().message()), HasSubstr("unknown type"));
  }
}

TEST(UcxMessageTest, ValuesOutOfRangeAreRefused) {
  const Piece piece{.offset = 0, .size = 1};
  for (const Body& body : std::vector<Body>{
           Welcome{.base = 1, .slot_bytes = 0, .slots = 8, .rkey = "k"},
           Welcome{.base = 1, .slot_bytes = 4096, .slots = 0, .rkey = "k"},
           Welcome{.base = 1, .slot_bytes = 4096, .slots = 8, .rkey = ""},
           Welcome{.base = 0, .slot_bytes = 4096, .slots = 8, .rkey = "k"},
           Welcome{.base = UINT64_MAX - 100, .slot_bytes = 4096, .slots = 8, .rkey = "k"},
           Request{.total_bytes = 0, .window = "w"},
           Request{.total_bytes = UINT64_MAX, .window = "w"},
           Request{.total_bytes = kMaxProbeBytes + 1, .window = ""},
           Written{.pieces = {}},
           Written{.pieces = std::vector<Piece>(kMaxPieces + 1, piece)},
           Written{.pieces = {{.offset = 0, .size = 0}}},
           Written{.pieces = {{.offset = INT64_MAX, .size = 1}}},
           Written{.pieces = {piece}, .bytes = "xx"},
           Written{.pieces = {piece, piece}, .bytes = "x"},
           Verdict{.code = 17}}) {
    EXPECT_FALSE(Decode(EncodeMessage({.connection = 1, .body = body})).ok()) << body.index();
  }
  EXPECT_TRUE(
      Decode(EncodeMessage({.connection = 1,
                            .body = Written{.pieces = std::vector<Piece>(kMaxPieces, piece)}}))
          .ok());
}

TEST(UcxMessageTest, FullestMessageFits) {
  Written written{.pieces = std::vector<Piece>(kMaxPieces, {.offset = 0, .size = 1})};
  written.pieces[0].size = kMaxCarriedBytes - kMaxPieces + 1;
  written.bytes.assign(kMaxCarriedBytes, 'x');
  const auto decoded = Decode(EncodeMessage({.connection = 1, .body = written}));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Written>(decoded->body), written);
}

TEST(UcxMessageTest, LongVerdictsAreCut) {
  const auto decoded =
      Decode(EncodeMessage({.connection = 1, .body = Verdict{.message = std::string(9999, 'x')}}));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Verdict>(decoded->body).message.size(), kMaxVerdictBytes);
}

}  // namespace
}  // namespace baton::transport::ucx
