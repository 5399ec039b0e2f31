// The bytes of every format and version, kept in tests/data/goldens/kv: what a release ships, later
// ones have to take, and a format that changes gets another version.
//
// A file holds the pages of a prompt as they are shipped, layer by layer. The prompt is exactly
// representable and its queries are zero, so that encoding involves no rounding that depends on the
// processor, except for shadowkv, whose basis comes from an iteration. With BATON_KV_GOLDENS set to
// a folder the test writes the files there instead.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <ios>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "kernels/core/dtype.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/op_table.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {
namespace {

constexpr int32_t kPrompt = 70;
constexpr uint32_t kSalt = 21;
constexpr int32_t kSteps = 12;

using Bytes = std::vector<std::byte>;

std::string PathOf(const std::string& folder, const std::string& name, int version) {
  return absl::StrCat(folder, "/", name, "-v", version, ".bin");
}

Bytes ReadGolden(const std::string& name, int version) {
  std::ifstream file(PathOf(BATON_SOURCE_DIR "/tests/data/goldens/kv", name, version),
                     std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

bool Writes() { return std::getenv("BATON_KV_GOLDENS") != nullptr; }

// `bytes` against the golden file, or into a new one.
void ExpectGolden(const std::string& name, int version, const Bytes& bytes) {
  if (Writes()) {
    std::ofstream(PathOf(std::getenv("BATON_KV_GOLDENS"), name, version), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return;
  }
  const Bytes golden = ReadGolden(name, version);
  ASSERT_EQ(bytes.size(), golden.size()) << name;
  const auto at = std::ranges::mismatch(bytes, golden).in1 - bytes.begin();
  EXPECT_EQ(bytes, golden) << name << " differs from byte " << at << " on";
}

Bytes PagesOf(const EncodedKv& kv) {
  Bytes bytes;
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    for (const std::span<const std::byte> page : EncodedPages(kv, layer)) {
      bytes.insert(bytes.end(), page.begin(), page.end());
    }
  }
  return bytes;
}

struct GoldenFormat {
  const char* name;
  const char* policy;
  bool exact = true;  // the same bytes on every processor
  int version = 1;
};

// 30 tokens high, the window and the first ones, which most queries see, and 40 low; in every head.
constexpr char kDiffKvState[] =
    "1e000000280000001e000000280000001e00000028000000"
    "1e000000280000001e000000280000001e00000028000000";

class GoldenBytesTest : public testing::TestWithParam<GoldenFormat> {
 protected:
  static std::unique_ptr<EncodedKv> Encoded(const CodecWorker& worker, int64_t max_tokens) {
    const TestPrompt prompt(worker, kPrompt, kSalt, /*zero_queries=*/true);
    auto kv = worker.Allocate(GetParam().policy, kPrompt, max_tokens);
    EXPECT_NE(kv, nullptr);
    EXPECT_TRUE(prompt.Encode(*kv).ok());
    return kv;
  }
  // A sequence that took over the golden bytes.
  std::unique_ptr<EncodedKv> Landed() {
    const char* const name = GetParam().name;
    const Bytes golden = ReadGolden(name, version());
    auto kv = worker_.Allocate(GetParam().policy, kPrompt, kSteps);
    const WindowShape shape = worker_.Window(GetParam().policy, kPrompt);
    const auto window = WindowPages(*kv, shape);
    const auto sent = kv->SentPages(state(), kTestLayers);
    EXPECT_TRUE(sent.ok()) << sent.status();
    size_t at = 0;
    for (size_t layer = 0; layer < kTestLayers; ++layer) {
      for (int32_t page = 0; page < (*sent)[layer]; ++page) {
        const auto target =
            window[layer * static_cast<size_t>(shape.pages_per_layer) + static_cast<size_t>(page)];
        if (at + target.size() > golden.size()) {
          ADD_FAILURE() << name << " is too short";
          return kv;
        }
        std::copy_n(golden.begin() + static_cast<ptrdiff_t>(at), target.size(), target.begin());
        at += target.size();
      }
    }
    EXPECT_EQ(at, golden.size());
    EXPECT_TRUE(kv->Adopt(state(), kTestLayers).ok());
    return kv;
  }

  int version() const { return worker_.Format(GetParam().policy).version(); }
  static std::string state() {
    return std::string(GetParam().name).starts_with("diffkv") ? absl::HexStringToBytes(kDiffKvState)
                                                              : std::string();
  }

  CodecWorker worker_;
};

TEST_P(GoldenBytesTest, EncodingGivesExactlyTheseBytesOnEveryProcessor) {
  EXPECT_EQ(version(), GetParam().version) << "a new version has new files";
  for (const kernels::CpuIsa isa :
       {kernels::CpuIsa::kPortable, kernels::CpuIsa::kAvx2, kernels::CpuIsa::kAvx512}) {
    const kernels::OpTable* ops = kernels::CpuOpsFor(isa);
    if (ops == nullptr) {
      continue;
    }
    SCOPED_TRACE(ops->name);
    const CodecWorker worker(
        {.fp8_bytes = 4 << 20, .diffkv_bytes = 4 << 20, .shadowkv_bytes = 8 << 20}, nullptr, *ops);
    const auto kv = Encoded(worker, 0);
    EXPECT_EQ(kv->State(), state());
    const Bytes bytes = PagesOf(*kv);
    if (GetParam().exact || Writes()) {
      ExpectGolden(GetParam().name, version(), bytes);
    } else {
      EXPECT_EQ(bytes.size(), ReadGolden(GetParam().name, version()).size());
    }
  }
}

TEST_P(GoldenBytesTest, TheseBytesAreAttendedLikeAPromptEncodedHere) {
  if (Writes()) {
    GTEST_SKIP() << "there are none yet";
  }
  const auto here = Encoded(worker_, kSteps);
  const auto landed = Landed();
  const auto want = Decode(*here, kPrompt, kSteps, kSalt);
  const auto got = Decode(*landed, kPrompt, kSteps, kSalt);
  ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
  ASSERT_EQ(got->size(), want->size());
  for (size_t i = 0; i < want->size(); ++i) {
    ASSERT_NEAR((*got)[i], (*want)[i], 0.02) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    GoldenBytesTest,
    testing::Values(
        GoldenFormat{"fp8", "fp8"},
        GoldenFormat{"diffkv-k8v4-k4v2", "diffkv:ah=2,al=0,w=16,sinks=2"},
        GoldenFormat{"diffkv-k8v8-k4v4", "diffkv:high=k8v8,low=k4v4,ah=2,al=0,w=16,sinks=2"},
        GoldenFormat{"shadowkv-mean-v4", "shadowkv:rank=8,budget=16,outliers=1,local=2", false, 2},
        GoldenFormat{"shadowkv-landmarks-int8",
                     "shadowkv:rank=8,budget=16,outliers=1,local=2,landmarks=int8",
                     false,
                     2},
        GoldenFormat{"shadowkv-q2-int8",
                     "shadowkv:rank=8,chunk=1,sel=q2,budget=16,outliers=0,local=16,a=int8",
                     false,
                     2},
        GoldenFormat{"shadowkv-joint",
                     "shadowkv:rank=8,chunk=1,sel=q2,budget=16,outliers=0,local=16,joint=24",
                     false,
                     2}),
    [](const testing::TestParamInfo<GoldenFormat>& instance) {
      std::string name = instance.param.name;
      std::ranges::replace(name, '-', '_');
      return name;
    });

TEST(GoldenPagesTest, DensePagesAreExactlyTheseBytes) {
  const CodecWorker worker;
  const TestPrompt prompt(worker, kPrompt, kSalt);
  const WorkingKv working = prompt.working();
  Bytes bytes;
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    for (int32_t page = 0; page < working.table.stride; ++page) {
      const auto id = static_cast<size_t>(working.table.data[layer * working.table.stride + page]);
      const std::byte* begin = working.pages.base + id * working.pages.layout.stride_bytes();
      bytes.insert(bytes.end(), begin, begin + working.pages.layout.page_bytes());
    }
  }
  ExpectGolden("dense", kernels::DensePageLayout::kVersion, bytes);
}

TEST(GoldenPagesTest, HiddenRowsAreExactlyTheseBytes) {
  constexpr int32_t kWidth = 320;  // two groups of channels and a shorter one
  for (const auto& [name, dtype] : {std::pair{"hidden-bf16", kernels::DType::kBF16},
                                    std::pair{"hidden-f8e4m3", kernels::DType::kF8E4M3}}) {
    const kernels::HiddenRowLayout layout{.width = kWidth, .dtype = dtype};
    Bytes bytes;
    for (int32_t token = 0; token < 8; ++token) {
      std::vector<float> x = TestFloats(kWidth, 4, kSalt, 0, token);
      if (token == 7) {
        std::ranges::fill(x, 0.0f);
      }
      Bytes row(layout.row_bytes());
      kernels::EncodeHiddenRow(x.data(), layout, row.data());
      std::vector<float> back(kWidth);
      kernels::DecodeHiddenRow(row.data(), layout, back.data());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(back[i], x[i], std::fabs(x[i]) / 16 + 0.01);
      }
      bytes.insert(bytes.end(), row.begin(), row.end());
    }
    ExpectGolden(name, kernels::HiddenRowLayout::kVersion, bytes);
  }
}

}  // namespace
}  // namespace baton::kv
