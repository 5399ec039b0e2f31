// What ops really touch, at Llama-3.1-8B's shape, against what their formats say they have to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/op_table.h"
#include "tests/kernels/counting/counting_ops.h"
#include "tests/kernels/counting/kv_layers.h"

namespace baton::kernels {
namespace {

constexpr int32_t kTokens = 8192;
constexpr int64_t kHeadTokens = int64_t{kTokens} * LlamaLayer::kKvHeads;
// Queries, outputs, tables and parameters beside the KV, and what rounding to whole words adds.
constexpr int64_t kBeside = 64 << 10;

class CountedBytesTest : public testing::Test {
 protected:
  // One layer, encoded by `ops`.
  std::unique_ptr<KvLayers> Encoded(const std::string& format, int32_t tokens, const OpTable& ops) {
    auto layers = MakeKvLayers(format, tokens, 1);
    workspace_ = Buffer(
        std::max(layers->workspace_bytes(CountingOps(), 1), layers->workspace_bytes(ops, 1)));
    exec_ = {.pool = &pool_, .workspace = &workspace_};
    EXPECT_TRUE(layers->Encode(ops, exec_, 0)) << format;
    EXPECT_TRUE(layers->Append(ops, exec_, 0)) << format;
    return layers;
  }
  // Of one step over all tokens; the KV is the same whoever encoded it.
  int64_t AttentionReads(const std::string& format) {
    const auto layers = Encoded(format, kTokens, CpuOps());
    const ByteCount bytes =
        CountBytes([&] { EXPECT_TRUE(layers->Attend(CountingOps(), exec_, 0)) << format; });
    return bytes.read;
  }

  ThreadPool pool_{1};
  Buffer workspace_;
  ExecContext exec_;
};

TEST_F(CountedBytesTest, AccessesAreCountedOnceAndReadsOfWhatWasWrittenNotAtAll) {
  constexpr int64_t kRows = 3;
  const std::vector<float> x(kRows * LlamaLayer::kHidden, 0.5f);
  const HiddenRowLayout layout{.width = LlamaLayer::kHidden, .dtype = DType::kBF16};
  std::vector<std::byte> coded(static_cast<size_t>(kRows) * layout.row_bytes());
  std::vector<float> back(x.size());
  const auto encode = [&] {
    EXPECT_TRUE(CountingOps()
                    .hidden_encode({.pool = &pool_, .workspace = &workspace_},
                                   {.x = x.data(),
                                    .x_stride = LlamaLayer::kHidden,
                                    .rows = kRows,
                                    .layout = layout,
                                    .coded = coded.data()})
                    .ok());
  };
  const auto decode = [&] {
    EXPECT_TRUE(CountingOps()
                    .hidden_decode({.pool = &pool_, .workspace = &workspace_},
                                   {.coded = coded.data(),
                                    .rows = kRows,
                                    .layout = layout,
                                    .out = back.data(),
                                    .out_stride = LlamaLayer::kHidden})
                    .ok());
  };
  const auto size = static_cast<int64_t>(coded.size());
  EXPECT_EQ(CountBytes(encode, std::as_bytes(std::span(x))).read, 2 * size);
  EXPECT_EQ(CountBytes(encode, coded).written, size);
  EXPECT_EQ(CountBytes(encode, coded).read, 0);
  const ByteCount twice = CountBytes(
      [&] {
        encode();
        encode();
        decode();
      },
      coded);
  EXPECT_EQ(twice.written, size);
  EXPECT_EQ(twice.read, 0);
  EXPECT_EQ(CountBytes(decode, coded).read, size);
  EXPECT_EQ(CountBytes([] {}).total(), 0);
}

TEST_F(CountedBytesTest, AttentionReadsEachKeyAndValueOfItsFormatAndCompressedOnesFewerBytes) {
  constexpr int64_t kDim = LlamaLayer::kHeadDim;
  const int64_t dense = AttentionReads("dense");
  EXPECT_GE(dense, kHeadTokens * 2 * kDim * 2);
  EXPECT_LE(dense, kHeadTokens * 2 * kDim * 2 + kBeside);
  const int64_t fp8 = AttentionReads("fp8");
  EXPECT_GE(fp8, kHeadTokens * 2 * (kDim + 4));
  EXPECT_LE(fp8, kHeadTokens * 2 * (kDim + 4) + kBeside);
  // 3 of 20 tokens: 8-bit keys, 4-bit values; the others 4 and 2; scale and zero of each in fp16.
  const int64_t high = kTokens / 20 * 3 + 3;  // 8,192 = 409 x 20 + 12
  const int64_t codes = LlamaLayer::kKvHeads * (high * (kDim + kDim / 2 + 8) +
                                                (kTokens - high) * (kDim / 2 + kDim / 4 + 8));
  const int64_t diffkv = AttentionReads("diffkv");
  EXPECT_GE(diffkv, codes);
  // The position of every token may be read too.
  EXPECT_LE(diffkv, codes + kHeadTokens * 4 + kBeside);

  // What compression is for.
  EXPECT_GE(static_cast<double>(dense) / static_cast<double>(diffkv), 2.5);
  const int64_t shadowkv = AttentionReads("shadowkv");
  EXPECT_GE(static_cast<double>(dense) / static_cast<double>(shadowkv), 2.5);
  for (const auto& [format, reads] :
       {std::pair{"dense", dense}, {"fp8", fp8}, {"diffkv", diffkv}, {"shadowkv", shadowkv}}) {
    RecordProperty(format, std::to_string(reads));
  }
}

TEST_F(CountedBytesTest, CountingOpsGiveTheResultsOfThePortableBackEnd) {
  constexpr int32_t kFew = 320;
  for (const char* format : {"dense", "fp8", "diffkv", "shadowkv", "hidden", "hidden8"}) {
    const OpTable& plain = *CpuOpsFor(CpuIsa::kPortable);
    const auto want = Encoded(format, kFew, plain);
    EXPECT_TRUE(want->Attend(plain, exec_, 0));
    // The decomposition of shadowkv takes long where every access is a call.
    const bool slow = std::string(format) == "shadowkv";
    const auto got = Encoded(format, kFew, slow ? plain : CountingOps());
    EXPECT_TRUE(got->Attend(CountingOps(), exec_, 0));
    EXPECT_EQ(got->out(), want->out()) << format;
  }
}

}  // namespace
}  // namespace baton::kernels
