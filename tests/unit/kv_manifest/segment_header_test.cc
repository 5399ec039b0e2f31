#include "common/kv/manifest/segment_header.h"

#include <random>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

#include "common/base/xxh3.h"

namespace baton::kv {
namespace {

using Bytes = std::vector<std::byte>;

SegmentHeader MakeHeader() {
  SegmentHeader header;
  header.reservation_id = 0x0102030405060708;
  header.epoch = 0x1112131415161718;
  header.attempt = 0x21222324;
  header.segment_index = 0x31323334;
  header.layer_begin = 0x4142;
  header.layer_count = 0x5152;
  header.head_begin = 0x6162;
  header.head_count = 0x7172;
  header.page_begin = 0x81828384;
  header.page_count = 0x91929394;
  header.format = WireFormat::kDiffKv;
  header.format_version = 0xa1a2;
  header.head_total = 0xe1e2;
  header.payload_bytes = 0xb1b2b3b4b5b6b7b8;
  header.checksum = 0xc1c2c3c4c5c6c7c8;
  return header;
}

Bytes Encode(const SegmentHeader& header) {
  const auto encoded = EncodeSegmentHeader(header);
  return Bytes(encoded.begin(), encoded.end());
}

// Makes the header's own checksum right again after a change.
void Seal(Bytes& bytes) {
  const uint64_t checksum = Xxh3(std::span(bytes).first(SegmentHeader::kBytes - 8));
  for (size_t i = 0; i < 8; ++i) {
    bytes[SegmentHeader::kBytes - 8 + i] = static_cast<std::byte>((checksum >> (8 * i)) & 0xff);
  }
}

TEST(SegmentHeaderTest, RoundTripsRandomHeaders) {
  const unsigned seed = 20240607;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    SegmentHeader header;
    header.reservation_id = random();
    header.epoch = random();
    header.attempt = static_cast<uint32_t>(random());
    header.segment_index = static_cast<uint32_t>(random());
    header.layer_begin = static_cast<uint16_t>(random());
    header.layer_count = static_cast<uint16_t>(random());
    header.head_begin = static_cast<uint16_t>(random() % 0x4000);
    header.head_count = static_cast<uint16_t>(1 + random() % 0x4000);
    header.head_total =
        static_cast<uint16_t>(header.head_begin + header.head_count + random() % 0x4000);
    header.page_begin = static_cast<uint32_t>(random());
    header.page_count = static_cast<uint32_t>(random());
    header.format = static_cast<WireFormat>(1 + random() % 4);
    header.format_version = static_cast<uint16_t>(random());
    header.payload_bytes = random();
    header.checksum = random();
    const auto decoded = DecodeSegmentHeader(Encode(header));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(*decoded, header);
  }
}

TEST(SegmentHeaderTest, BytesAreExactlyThese) {
  const Bytes bytes = Encode(MakeHeader());
  EXPECT_EQ(absl::BytesToHexString(
                absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())),
            "42544b56"                          // magic "BTKV"
            "0200"                              // version
            "6000"                              // header_bytes
            "0807060504030201"                  // reservation_id
            "1817161514131211"                  // epoch
            "24232221"                          // attempt
            "34333231"                          // segment_index
            "4241"                              // layer_begin
            "5251"                              // layer_count
            "6261"                              // head_begin
            "7271"                              // head_count
            "84838281"                          // page_begin
            "94939291"                          // page_count
            "0300"                              // format
            "a2a1"                              // format_version
            "0100"                              // checksum_type
            "e2e1"                              // head_total
            "b8b7b6b5b4b3b2b1"                  // payload_bytes
            "c8c7c6c5c4c3c2c1"                  // checksum
            "00000000000000000000000000000000"  // padding
            "cea9156d67e60273");                // xxh3-64 of all before
}

TEST(SegmentHeaderTest, EveryTruncationIsDataLoss) {
  const Bytes bytes = Encode(MakeHeader());
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly this size, so that a sanitizer sees a read past its end.
    const Bytes truncated(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(DecodeSegmentHeader(truncated).status().code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST(SegmentHeaderTest, OversizeIsDataLoss) {
  Bytes bytes = Encode(MakeHeader());
  bytes.push_back(std::byte{0});
  EXPECT_EQ(DecodeSegmentHeader(bytes).status().code(), absl::StatusCode::kDataLoss);
}

TEST(SegmentHeaderTest, EveryFlippedBitIsRefused) {
  const Bytes bytes = Encode(MakeHeader());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(DecodeSegmentHeader(flipped).ok()) << "bit " << bit;
  }
}

TEST(SegmentHeaderTest, OtherVersionsFormatsAndChecksumTypesAreFailedPrecondition) {
  for (const size_t at : {4u, 48u, 52u}) {  // version, format, checksum_type
    Bytes bytes = Encode(MakeHeader());
    bytes[at] = std::byte{9};
    Seal(bytes);
    EXPECT_EQ(DecodeSegmentHeader(bytes).status().code(), absl::StatusCode::kFailedPrecondition)
        << at;
  }
}

TEST(SegmentHeaderTest, AHeaderOfTheVersionBeforeIsFailedPrecondition) {
  Bytes bytes = Encode(MakeHeader());
  bytes[4] = std::byte{1};
  Seal(bytes);
  EXPECT_EQ(DecodeSegmentHeader(bytes).status().code(), absl::StatusCode::kFailedPrecondition);
}

// What a rank of a tensor-parallel worker may say of its heads.
TEST(SegmentHeaderTest, HeadsAreARangeOfTheModels) {
  struct Case {
    uint16_t begin;
    uint16_t count;
    uint16_t total;
    bool valid;
  };
  const std::vector<Case> cases = {{0, 8, 8, true},
                                   {0, 1, 8, true},
                                   {7, 1, 8, true},
                                   {4, 4, 8, true},
                                   {0, 0, 8, false},
                                   {8, 0, 8, false},
                                   {8, 1, 8, false},
                                   {5, 4, 8, false},
                                   {0, 1, 0, false},
                                   {0xffff, 0xffff, 0xffff, false}};
  for (const Case& heads : cases) {
    SegmentHeader header = MakeHeader();
    header.head_begin = heads.begin;
    header.head_count = heads.count;
    header.head_total = heads.total;
    EXPECT_EQ(DecodeSegmentHeader(Encode(header)).status().code(),
              heads.valid ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
        << heads.begin << " (" << heads.count << ") of " << heads.total;
  }
}

TEST(SegmentHeaderTest, FormatsOneToFourAreKnown) {
  for (int format = 0; format < 7; ++format) {
    Bytes bytes = Encode(MakeHeader());
    bytes[48] = static_cast<std::byte>(format);
    Seal(bytes);
    EXPECT_EQ(DecodeSegmentHeader(bytes).ok(), format >= 1 && format <= 4) << format;
  }
  EXPECT_EQ(WireFormatNamed("dense"), WireFormat{1});
  EXPECT_EQ(WireFormatNamed("fp8"), WireFormat{2});
  EXPECT_EQ(WireFormatNamed("diffkv"), WireFormat{3});
  EXPECT_EQ(WireFormatNamed("shadowkv"), WireFormat{4});
  EXPECT_FALSE(WireFormatNamed("").has_value());
  EXPECT_FALSE(WireFormatNamed("Dense").has_value());
  EXPECT_FALSE(WireFormatNamed("diffkv:w=32").has_value());
}

TEST(SegmentHeaderTest, NonZeroPaddingIsDataLoss) {
  for (size_t at = 72; at < 88; ++at) {
    Bytes bytes = Encode(MakeHeader());
    bytes[at] = std::byte{1};
    Seal(bytes);
    EXPECT_EQ(DecodeSegmentHeader(bytes).status().code(), absl::StatusCode::kDataLoss) << at;
  }
}

TEST(SegmentHeaderTest, TransferIdsDifferByAttemptAndSegment) {
  EXPECT_EQ(TransferId(1, 2), 0x0000000100000002u);
  EXPECT_NE(TransferId(2, 1), TransferId(1, 2));
}

}  // namespace
}  // namespace baton::kv
