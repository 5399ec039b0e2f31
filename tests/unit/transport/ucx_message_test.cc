#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/transport/ucx/message.h"
#include "tests/support/resealed.h"
#include "tests/unit/transport/message_checks.h"

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

absl::StatusOr<Message> Decode(const std::string& bytes) { return DecodeMessage(BytesOf(bytes)); }

TEST(UcxMessageTest, EveryTypeSurvivesARoundTrip) {
  ExpectRoundTrips(OneOfEach(), EncodeMessage, DecodeMessage);
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
  EXPECT_EQ(Resealed(bytes), bytes);
}

TEST(UcxMessageTest, EveryTruncationIsRefusedEvenWithItsOwnChecksum) {
  ExpectTruncationsRefused(OneOfEach(), EncodeMessage, DecodeMessage);
}

TEST(UcxMessageTest, BytesBehindTheBodyAreRefused) {
  ExpectMoreBytesRefused(OneOfEach(), EncodeMessage, DecodeMessage, kMaxMessageBytes);
}

TEST(UcxMessageTest, EveryFlippedBitIsRefused) {
  ExpectFlippedBitsRefused(OneOfEach(), EncodeMessage, DecodeMessage);
}

TEST(UcxMessageTest, AnotherVersionIsNamed) {
  std::string bytes = EncodeMessage(OneOfEach().front());
  bytes[4] = 1;
  EXPECT_THAT(std::string(Decode(Resealed(bytes)).status().message()), HasSubstr("version 1"));
}

TEST(UcxMessageTest, UnknownTypesAreRefused) {
  for (const int type : {0, 8, 255}) {
    std::string bytes = EncodeMessage(OneOfEach().front());
    bytes[6] = static_cast<char>(type);
    EXPECT_THAT(std::string(Decode(Resealed(bytes)).status().message()), HasSubstr("unknown type"));
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
