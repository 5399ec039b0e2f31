#include "common/kv/manifest/layout.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/xxh3.h"
#include "common/kv/manifest/digest.h"
#include "common/kv/manifest/reason.h"
#include "proto/google/rpc/error_details.pb.h"

namespace baton::kv {
namespace {

v1::KvLayout MakeLayout() {
  return DenseLayout(0x77, 8, {.page_tokens = 32, .kv_heads = 4, .head_dim = 64});
}

TEST(LayoutTest, DenseLayoutDescribesItsPages) {
  const v1::KvLayout layout = MakeLayout();
  EXPECT_EQ(layout.page_bytes(), 2u * 4 * 32 * 64 * 2);
  EXPECT_EQ(layout.dtype(), "bf16");
  EXPECT_EQ(layout.format(), "dense");
  EXPECT_EQ(layout.format_version(), 1u);
  EXPECT_EQ(layout.policy(), "dense");
  EXPECT_TRUE(CheckLayout(layout, MakeLayout()).ok());
}

TEST(LayoutTest, MismatchNamesTheFieldAndCarriesItsReason) {
  const std::vector<std::pair<const char*, std::function<void(v1::KvLayout&)>>> changes = {
      {"model_fingerprint", [](v1::KvLayout& l) { l.set_model_fingerprint(1); }},
      {"layers", [](v1::KvLayout& l) { l.set_layers(1); }},
      {"kv_heads", [](v1::KvLayout& l) { l.set_kv_heads(1); }},
      {"head_dim", [](v1::KvLayout& l) { l.set_head_dim(1); }},
      {"dtype", [](v1::KvLayout& l) { l.set_dtype("f32"); }},
      {"page_tokens", [](v1::KvLayout& l) { l.set_page_tokens(1); }},
      {"page_bytes", [](v1::KvLayout& l) { l.set_page_bytes(1); }},
      {"format", [](v1::KvLayout& l) { l.set_format("diffkv"); }},
      {"format_version", [](v1::KvLayout& l) { l.set_format_version(2); }},
      {"policy", [](v1::KvLayout& l) { l.set_policy("diffkv"); }},
      {"calibration_digest", [](v1::KvLayout& l) { l.set_calibration_digest(1); }},
  };
  for (const auto& [field, change] : changes) {
    v1::KvLayout theirs = MakeLayout();
    change(theirs);
    const absl::Status status = CheckLayout(MakeLayout(), theirs);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(std::string("field ") + field + " "));
    const auto payload = status.GetPayload(std::string(kErrorInfoTypeUrl));
    ASSERT_TRUE(payload.has_value());
    google::rpc::ErrorInfo info;
    ASSERT_TRUE(info.ParseFromString(std::string(*payload)));
    EXPECT_EQ(info.reason(), "LAYOUT_MISMATCH");
  }
}

TEST(LayoutTest, GeometryPlacesPagesLayerByLayer) {
  const auto geometry = MakeWindowGeometry(MakeLayout(), 65, {.per_layer = 3});
  ASSERT_TRUE(geometry.ok());
  EXPECT_EQ(geometry->pages_per_layer, 3);
  EXPECT_EQ(geometry->offset(2, 1), 7 * geometry->page_bytes);
  EXPECT_EQ(geometry->window_bytes(), 24 * geometry->page_bytes);
}

TEST(LayoutTest, GeometryRefusesSizesThatMakeNoSense) {
  const auto code = [](const std::function<void(v1::KvLayout&)>& change,
                       int64_t prompt_tokens,
                       int64_t pages_per_layer = 1) {
    v1::KvLayout layout = MakeLayout();
    change(layout);
    return MakeWindowGeometry(layout, prompt_tokens, {.per_layer = pages_per_layer})
        .status()
        .code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto nothing = [](v1::KvLayout&) {};
  EXPECT_EQ(code(nothing, 0), kInvalid);
  EXPECT_EQ(code(nothing, -1), kInvalid);
  EXPECT_EQ(code(nothing, INT64_MAX), kInvalid);
  EXPECT_EQ(code([](v1::KvLayout& l) { l.set_layers(0); }, 1), kInvalid);
  EXPECT_EQ(code([](v1::KvLayout& l) { l.set_layers(UINT32_MAX); }, 1), kInvalid);
  EXPECT_EQ(code(nothing, 1, 0), kInvalid);
  EXPECT_EQ(code(nothing, 1, -1), kInvalid);
  EXPECT_EQ(code(nothing, 1, INT64_MAX), kInvalid);
  EXPECT_EQ(code([](v1::KvLayout& l) { l.set_page_bytes(0); }, 1), kInvalid);
  EXPECT_EQ(code([](v1::KvLayout& l) { l.set_page_bytes(UINT64_MAX); }, 1), kInvalid);
  EXPECT_EQ(code([](v1::KvLayout& l) { l.set_kv_heads(0); }, 1), kInvalid);
  // Each is in range, but a layer would be larger than 2^50 bytes.
  EXPECT_EQ(code([](v1::KvLayout& l) { l.set_page_bytes(uint64_t{1} << 36); }, 1, 1 << 15),
            kInvalid);
  EXPECT_EQ(code([](v1::KvLayout& l) { l.set_page_bytes(uint64_t{1} << 36); }, 1, 1 << 14),
            absl::StatusCode::kOk);
}

TEST(DigestTest, StreamEqualsOneCallHoweverTheBytesAreCut) {
  std::vector<std::byte> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + 1);
  }
  for (const size_t piece : {1u, 3u, 64u, 1000u, 5000u}) {
    Xxh3Stream stream;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      stream.Update(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(stream.value(), Xxh3(bytes)) << piece;
  }
}

TEST(DigestTest, ValuesAreThoseOfXxh3) {
  // XXH3_64bits of nothing with seed 0, from the xxHash specification.
  EXPECT_EQ(Xxh3({}), 0x2d06800538d394c2u);
  EXPECT_EQ(DigestOfCommit({}, {}), 0x2d06800538d394c2u);
}

TEST(DigestTest, OrderOfSegmentsMatters) {
  const uint64_t forward[] = {1, 2};
  const uint64_t backward[] = {2, 1};
  EXPECT_NE(DigestOfCommit(forward, {}), DigestOfCommit(backward, {}));
}

TEST(DigestTest, IsTakenOverChecksumsAndThenTheCommit) {
  const uint64_t checksums[] = {0x0807060504030201, 0x100f0e0d0c0b0a09};
  std::vector<std::byte> bytes;
  for (int i = 1; i <= 19; ++i) {
    bytes.push_back(static_cast<std::byte>(i));
  }
  EXPECT_EQ(DigestOfCommit(checksums, "\x11\x12\x13"), Xxh3(bytes));
  EXPECT_NE(DigestOfCommit(checksums, "\x11\x12\x12"), Xxh3(bytes));
}

}  // namespace
}  // namespace baton::kv
