#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/transport/ipc/message.h"
#include "tests/support/resealed.h"
#include "tests/unit/transport/message_checks.h"

namespace baton::transport::ipc {
namespace {

using testing::HasSubstr;

std::vector<Message> OneOfEach() {
  return {Hello{},
          Welcome{},
          Welcome{.imports_devices = true},
          Export{.block = 7, .size = uint64_t{1} << 40},
          Export{.block = 8, .size = 4096, .of_device = true},
          Imported{.block = 7},
          Imported{.block = 8, .code = 14, .message = "can't be reached"},
          Request{.post = 1, .transfer_id = 5, .total_bytes = 300, .window = std::string(24, 'w')},
          Request{.post = 2,
                  .transfer_id = 6,
                  .total_bytes = 150,
                  .window = "w",
                  .pieces = {{.offset = 0, .size = 100, .block = 7, .source = 4096},
                             {.offset = 200, .size = 50, .block = 8}}},
          Ready{.post = 1},
          Written{.post = 1,
                  .last = true,
                  .pieces = {{.offset = 0, .size = 100, .block = 7, .source = 4096},
                             {.offset = 4096, .size = uint64_t{1} << 33, .block = 7}}},
          Written{.post = 1,
                  .pieces = {{.offset = 0, .size = 2},
                             {.offset = 9, .size = 50, .block = 7},
                             {.offset = 90, .size = 3}},
                  .bytes = std::string("\0byte", 5)},
          Verdict{.post = 1, .code = 9, .message = "withdrawn"},
          Release{.post = 1}};
}

absl::StatusOr<Message> Decode(const std::string& bytes) { return DecodeMessage(BytesOf(bytes)); }

TEST(IpcMessageTest, EveryTypeSurvivesARoundTrip) {
  ExpectRoundTrips(OneOfEach(), EncodeMessage, DecodeMessage);
}

TEST(IpcMessageTest, BytesAreThoseOfTheFormat) {
  const std::string bytes = EncodeMessage(
      Written{.post = 0x0102030405060708,
              .last = true,
              .pieces = {{.offset = 4096, .size = 3},
                         {.offset = 5000, .size = 256, .block = 2, .source = 0x010203}},
              .bytes = "abc"});
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(0, bytes.size() - 8)),
            "42544950"          // magic
            "0300"              // version
            "0700"              // type
            "0807060504030201"  // post
            "01"                // last
            "0200"              // pieces
            "0010000000000000"  // offset
            "0300000000000000"  // size
            "00000000"          // block: in the message
            "0000000000000000"  // source
            "8813000000000000"  // offset
            "0001000000000000"  // size
            "02000000"          // block
            "0302010000000000"  // source
            "0300"              // bytes
            "616263");
  EXPECT_EQ(Resealed(bytes), bytes);
}

TEST(IpcMessageTest, BytesOfARequestAreThoseOfTheFormat) {
  const std::string bytes =
      EncodeMessage(Request{.post = 1,
                            .transfer_id = 5,
                            .total_bytes = 300,
                            .window = "win",
                            .pieces = {{.offset = 4096, .size = 300, .block = 2, .source = 16}}});
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(0, bytes.size() - 8)),
            "42544950"          // magic
            "0300"              // version
            "0500"              // type
            "0100000000000000"  // post
            "0500000000000000"  // transfer
            "2c01000000000000"  // bytes in all
            "0300"              // window
            "77696e"
            "0100"              // pieces
            "0010000000000000"  // offset
            "2c01000000000000"  // size
            "02000000"          // block
            "1000000000000000"  // source
  );
}

TEST(IpcMessageTest, EveryTruncationIsRefusedEvenWithItsOwnChecksum) {
  ExpectTruncationsRefused(OneOfEach(), EncodeMessage, DecodeMessage);
}

TEST(IpcMessageTest, BytesBehindTheBodyAreRefused) {
  ExpectMoreBytesRefused(OneOfEach(), EncodeMessage, DecodeMessage, kMaxMessageBytes);
}

TEST(IpcMessageTest, EveryFlippedBitIsRefused) {
  ExpectFlippedBitsRefused(OneOfEach(), EncodeMessage, DecodeMessage);
}

TEST(IpcMessageTest, AnotherVersionIsNamed) {
  std::string bytes = EncodeMessage(OneOfEach().front());
  bytes[4] = 4;
  EXPECT_THAT(std::string(Decode(Resealed(bytes)).status().message()), HasSubstr("version 4"));
}

TEST(IpcMessageTest, UnknownTypesAreRefused) {
  for (const int type : {0, 10, 255}) {
    std::string bytes = EncodeMessage(OneOfEach().front());
    bytes[6] = static_cast<char>(type);
    EXPECT_THAT(std::string(Decode(Resealed(bytes)).status().message()), HasSubstr("unknown type"));
  }
}

TEST(IpcMessageTest, ValuesOutOfRangeAreRefused) {
  const Piece piece{.offset = 0, .size = 1, .block = 1};
  const Piece carried{.offset = 0, .size = 1};
  for (const Message& message : std::vector<Message>{
           Export{.block = 0, .size = 1},
           Export{.block = 1, .size = 0},
           Export{.block = 1, .size = UINT64_MAX},
           Request{.total_bytes = 0, .window = "w"},
           Request{.total_bytes = UINT64_MAX, .window = "w"},
           Request{.total_bytes = 1, .pieces = {carried}},
           Request{.total_bytes = 1, .pieces = {{.offset = 0, .size = 0, .block = 1}}},
           Request{.total_bytes = 1, .pieces = std::vector<Piece>(kMaxRequestPieces + 1, piece)},
           Written{.pieces = {}},
           Written{.pieces = std::vector<Piece>(kMaxPieces + 1, piece)},
           Written{.pieces = {{.offset = 0, .size = 0, .block = 1}}},
           Written{.pieces = {{.offset = INT64_MAX, .size = 1, .block = 1}}},
           Written{.pieces = {{.offset = 0, .size = 1, .block = 1, .source = INT64_MAX}}},
           Written{.pieces = {{.offset = 0, .size = UINT64_MAX, .block = 1}}},
           Written{.pieces = {{.offset = 0, .size = UINT64_MAX}}},
           Written{.pieces = {{.offset = 0, .size = 1, .source = 1}}, .bytes = "x"},
           Written{.pieces = {piece}, .bytes = "x"},
           Written{.pieces = {carried}, .bytes = "xx"},
           Written{.pieces = {carried, carried}, .bytes = "x"},
           Imported{.code = 17},
           Verdict{.code = 17}}) {
    EXPECT_FALSE(Decode(EncodeMessage(message)).ok()) << message.index();
  }
}

TEST(IpcMessageTest, FlagsAreZeroOrOne) {
  for (const Message& message : std::vector<Message>{Welcome{}, Export{.block = 1, .size = 1}}) {
    std::string bytes = EncodeMessage(message);
    bytes[bytes.size() - 9] = 2;  // the last byte before the checksum
    EXPECT_FALSE(Decode(Resealed(bytes)).ok()) << message.index();
  }
}

TEST(IpcMessageTest, FullestMessageFits) {
  Written written{.pieces = std::vector<Piece>(kMaxPieces, {.offset = 0, .size = 1})};
  written.pieces[0].size = kMaxCarriedBytes - kMaxPieces + 1;
  written.bytes.assign(kMaxCarriedBytes, 'x');
  const auto decoded = Decode(EncodeMessage(written));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Written>(*decoded), written);
}

TEST(IpcMessageTest, LongVerdictsAreCut) {
  const auto decoded = Decode(EncodeMessage(Verdict{.message = std::string(9999, 'x')}));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Verdict>(*decoded).message.size(), kMaxVerdictBytes);
}

}  // namespace
}  // namespace baton::transport::ipc
