// The page manager and the prompt side of format `diffkv` on the device against the reference:
// classes, counts, page tables, leases and every byte of the pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/device_diffkv.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels::cuda {
namespace {

// Some tokens of a prompt, [first, end), with given classes.
struct Extension {
  Extension(const DiffKvPrompt& prompt,
            const std::vector<DiffKvClass>& all,
            std::vector<int32_t> counts_before,
            int32_t first_in,
            int32_t end_in)
      : first(first_in), end(end_in), held(std::move(counts_before)), counts(held) {
    for (size_t head = 0; head < held.size() / kDiffKvTiers; ++head) {
      for (int32_t token = first; token < end; ++token) {
        const size_t at = head * static_cast<size_t>(prompt.tokens) + static_cast<size_t>(token);
        classes.push_back(all[at]);
        scores.push_back(prompt.scores[at]);
        if (all[at] != DiffKvClass::kPruned) {
          ++counts[head * kDiffKvTiers + static_cast<size_t>(all[at])];
        }
      }
    }
  }

  int32_t first;
  int32_t end;
  std::vector<int32_t> held;
  std::vector<int32_t> counts;
  std::vector<DiffKvClass> classes;
  std::vector<float> scores;
};

class DiffKvEncodeGpuTest : public GpuTest {
 protected:
  // Classes in any order, mostly high.
  static std::vector<DiffKvClass> RandomClasses(size_t count) {
    std::mt19937 random(TestSeed());
    std::vector<DiffKvClass> classes(count);
    std::generate(classes.begin(), classes.end(), [&] {
      return static_cast<DiffKvClass>(std::min<uint64_t>(random() % 5, 2));
    });
    return classes;
  }

  static void TakeOnHost(DiffKvCache& cache, DiffKvPrompt& prompt, const Extension& extension) {
    const TestContext host(ReferenceOps(), 1);
    cache.counts = extension.counts;
    const DiffKvLayer layer = cache.layer();
    ASSERT_TRUE(ReferenceOps()
                    .diffkv_assign_pages(*host,
                                         {.geometry = cache.shape.geometry,
                                          .layer = layer,
                                          .held = extension.held.data(),
                                          .lease = &cache.lease})
                    .ok());
    ASSERT_TRUE(
        ReferenceOps()
            .diffkv_encode(*host,
                           {.source = {.base = prompt.dense.data(), .layout = prompt.layout},
                            .source_table = prompt.dense_table.data(),
                            .first_token = extension.first,
                            .tokens = extension.end,
                            .classes = extension.classes.data(),
                            .scores = extension.scores.data(),
                            .score_stride = extension.end - extension.first,
                            .held = extension.held.data(),
                            .layer = layer,
                            .pages = cache.pages()})
            .ok());
  }

  void TakeOnDevice(DiffKvCache& cache,
                    const DeviceDiffKvPrompt& prompt,
                    const Extension& extension) const {
    cache.counts = extension.counts;
    const DeviceDiffKvCache device(cache);
    const DeviceArray<int32_t> held(extension.held);
    const DeviceArray<DiffKvClass> classes(extension.classes);
    const DeviceArray<float> scores(extension.scores);
    ASSERT_TRUE(ops()
                    .diffkv_assign_pages(context(),
                                         {.geometry = cache.shape.geometry,
                                          .layer = device.layer(),
                                          .held = held.data(),
                                          .lease = device.lease()})
                    .ok());
    ASSERT_TRUE(ops()
                    .diffkv_encode(context(),
                                   {.source = prompt.pages(),
                                    .source_table = prompt.table(),
                                    .first_token = extension.first,
                                    .tokens = extension.end,
                                    .classes = classes.data(),
                                    .scores = scores.data(),
                                    .score_stride = extension.end - extension.first,
                                    .held = held.data(),
                                    .layer = device.layer(),
                                    .pages = device.pages()})
                    .ok());
    Wait();
    device.Download(cache);
  }
};

TEST_F(DiffKvEncodeGpuTest, GivesTheClassesAndCountsOfEveryScoringAndBase) {
  const TestContext host(ReferenceOps(), 1);
  for (const DiffKvScoring scoring : {DiffKvScoring::kLastWindow, DiffKvScoring::kAllLater}) {
    for (const DiffKvBase base : {DiffKvBase::kLength, DiffKvBase::kIndex}) {
      for (const int32_t tokens : {1, 5, 63, 64, 65, 1023, 1025, 5000}) {
        SCOPED_TRACE(absl::StrCat("tokens ", tokens));
        const DiffKvPrompt prompt({.kv_heads = 3, .head_dim = 64}, tokens);
        DiffKvPolicy policy = MixedPolicy(tokens);
        policy.scoring = scoring;
        policy.base = base;
        policy.sinks = 2;
        std::vector<DiffKvClass> classes(prompt.scores.size());
        std::vector<int32_t> counts(6);
        DiffKvClassifyParams params = {.scores = prompt.scores.data(),
                                       .score_stride = tokens,
                                       .tokens = tokens,
                                       .kv_heads = 3,
                                       .policy = policy,
                                       .classes = classes.data(),
                                       .token_counts = counts.data()};
        ASSERT_TRUE(ReferenceOps().diffkv_classify(*host, params).ok());
        const DeviceArray<float> scores(prompt.scores);
        const auto got_classes = DeviceArray<DiffKvClass>::Poisoned(classes.size());
        const auto got_counts = DeviceArray<int32_t>::Poisoned(counts.size());
        params.scores = scores.data();
        params.classes = got_classes.data();
        params.token_counts = got_counts.data();
        ASSERT_TRUE(ops().diffkv_classify(context(), params).ok());
        Wait();
        EXPECT_EQ(got_classes.Get(), classes) << SeedMessage();
        EXPECT_EQ(got_counts.Get(), counts) << SeedMessage();
      }
    }
  }
}

TEST_F(DiffKvEncodeGpuTest, CountsTheTokensOfAnExtensionBesideThoseHeld) {
  constexpr int32_t kFirst = 77;
  constexpr int32_t kTokens = 1300;
  const TestContext host(ReferenceOps(), 1);
  const DiffKvPrompt prompt({.kv_heads = 2, .head_dim = 64}, kTokens);
  const auto count = 2 * static_cast<size_t>(kTokens - kFirst);
  std::vector<DiffKvClass> classes(count);
  std::vector<int32_t> counts(4);
  const std::vector<int32_t> held = {70, 0, 31, 46};
  DiffKvClassifyParams params = {.scores = prompt.scores.data(),
                                 .score_stride = kTokens,
                                 .first_token = kFirst,
                                 .tokens = kTokens,
                                 .kv_heads = 2,
                                 .policy = MixedPolicy(kTokens),
                                 .held = held.data(),
                                 .classes = classes.data(),
                                 .token_counts = counts.data()};
  ASSERT_TRUE(ReferenceOps().diffkv_classify(*host, params).ok());
  const DeviceArray<float> scores(prompt.scores);
  const auto got_classes = DeviceArray<DiffKvClass>::Poisoned(count);
  const auto got_counts = DeviceArray<int32_t>::Poisoned(counts.size());
  const DeviceArray<int32_t> held_counts(held);
  params.scores = scores.data();
  params.held = held_counts.data();
  params.classes = got_classes.data();
  params.token_counts = got_counts.data();
  ASSERT_TRUE(ops().diffkv_classify(context(), params).ok());
  Wait();
  EXPECT_EQ(got_classes.Get(), classes) << SeedMessage();
  EXPECT_EQ(got_counts.Get(), counts) << SeedMessage();
}

TEST_F(DiffKvEncodeGpuTest, EncodedPagesHaveTheSameBytes) {
  const TestContext host(ReferenceOps(), 1);
  for (const DiffKvGeometry& geometry : DiffKvGeometries()) {
    for (const int32_t tokens : {1, 20, 65, 1000, 2500}) {
      SCOPED_TRACE(absl::StrCat(Describe({.geometry = geometry}), " tokens ", tokens));
      DiffKvPrompt prompt(geometry, tokens);
      DiffKvCache want({.geometry = geometry}, tokens);
      DiffKvCache got = want;
      want.Load(ReferenceOps(), *host, prompt, MixedPolicy(tokens));
      const DeviceDiffKvCache device(got);
      const DeviceDiffKvPrompt device_prompt(prompt);
      EXPECT_EQ(device.Load(ops(), context(), device_prompt, MixedPolicy(tokens)), want.classes);
      device.Download(got);
      ASSERT_NO_FATAL_FAILURE(ExpectSameCache(got, want));
    }
  }
}

// Constant vectors, values past fp16 and zeros of both signs.
TEST_F(DiffKvEncodeGpuTest, ExtremeValuesGetTheSameCodes) {
  const TestContext host(ReferenceOps(), 1);
  const DiffKvGeometry geometry = {.kv_heads = 2, .head_dim = 128};
  constexpr int32_t kTokens = 320;
  DiffKvPrompt prompt(geometry, kTokens);
  const std::vector<float> magnitudes = {
      0.0f, -0.0f, 1e-30f, 1e-7f, 1e-3f, 1.0f, 300.0f, 7e4f, 1e30f};
  std::mt19937 random(TestSeed());
  std::vector<float> values(prompt.dense.size() / 2);
  for (size_t begin = 0; begin < values.size(); begin += 128) {
    const float magnitude = magnitudes[random() % magnitudes.size()];
    const float offset = magnitudes[random() % magnitudes.size()];
    for (size_t i = begin; i < std::min(begin + 128, values.size()); ++i) {
      const auto step = static_cast<float>(random() % 64);
      values[i] = offset + magnitude * (step - 32.0f);
    }
  }
  const std::vector<std::byte> bytes = Encode(values, DType::kBF16);
  std::copy(bytes.begin(), bytes.end(), prompt.dense.data());
  DiffKvCache want({.geometry = geometry}, kTokens);
  DiffKvCache got = want;
  want.Load(ReferenceOps(), *host, prompt, MixedPolicy(kTokens));
  const DeviceDiffKvCache device(got);
  const DeviceDiffKvPrompt device_prompt(prompt);
  device.Load(ops(), context(), device_prompt, MixedPolicy(kTokens));
  device.Download(got);
  ExpectSameCache(got, want);
}

TEST_F(DiffKvEncodeGpuTest, TokensTakenInSeveralTimesLieAsTheReferencePutsThem) {
  for (const DiffKvGeometry& geometry : DiffKvGeometries(/*kv_heads=*/3)) {
    const DiffKvShape shape = {.geometry = geometry};
    constexpr int32_t kTokens = 1500;
    SCOPED_TRACE(Describe(shape));
    DiffKvPrompt prompt(shape.geometry, kTokens);
    const DeviceDiffKvPrompt device_prompt(prompt);
    const std::vector<DiffKvClass> classes = RandomClasses(prompt.scores.size());
    DiffKvCache want(shape, kTokens);
    DiffKvCache got = want;
    const std::vector<int32_t> cuts = {0, 1, 2, 66, 67, 300, kTokens};
    for (size_t i = 1; i < cuts.size(); ++i) {
      const Extension extension(prompt, classes, want.counts, cuts[i - 1], cuts[i]);
      ASSERT_NO_FATAL_FAILURE(TakeOnHost(want, prompt, extension));
      ASSERT_NO_FATAL_FAILURE(TakeOnDevice(got, device_prompt, extension));
      ASSERT_NO_FATAL_FAILURE(ExpectSameCache(got, want)) << "tokens until " << cuts[i];
    }
  }
}

// One token in thousands is low, so that a page's tokens come from many tiles.
TEST_F(DiffKvEncodeGpuTest, RareTokensAreFoundInOrder) {
  const DiffKvShape shape = {.geometry = {.kv_heads = 2, .head_dim = 64}};
  constexpr int32_t kTokens = 9000;
  DiffKvPrompt prompt(shape.geometry, kTokens);
  const DeviceDiffKvPrompt device_prompt(prompt);
  std::vector<DiffKvClass> classes(prompt.scores.size(), DiffKvClass::kHigh);
  for (size_t i = 700; i < classes.size(); i += 1700) {
    classes[i] = DiffKvClass::kLow;
  }
  DiffKvCache want(shape, kTokens);
  DiffKvCache got = want;
  const Extension extension(prompt, classes, want.counts, 0, kTokens);
  ASSERT_NO_FATAL_FAILURE(TakeOnHost(want, prompt, extension));
  ASSERT_NO_FATAL_FAILURE(TakeOnDevice(got, device_prompt, extension));
  ExpectSameCache(got, want);
}

TEST_F(DiffKvEncodeGpuTest, RefusesPagesThatAreNotBf16) {
  const DiffKvGeometry geometry = {.kv_heads = 2, .head_dim = 64};
  DiffKvPrompt prompt(geometry, 10, DType::kF32);
  DiffKvCache cache({.geometry = geometry}, 10);
  const DeviceDiffKvCache device(cache);
  const DeviceDiffKvPrompt device_prompt(prompt);
  const DeviceArray<DiffKvClass> classes(std::vector<DiffKvClass>(20));
  const absl::Status status = ops().diffkv_encode(context(),
                                                  {.source = device_prompt.pages(),
                                                   .source_table = device_prompt.table(),
                                                   .tokens = 10,
                                                   .classes = classes.data(),
                                                   .scores = device_prompt.scores(),
                                                   .score_stride = 10,
                                                   .layer = device.layer(),
                                                   .pages = device.pages()});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

// Page tables of many heads with random counts.
class DiffKvPagesGpuTest : public GpuTest {
 protected:
  static constexpr DiffKvGeometry kGeometry = {.kv_heads = 70, .head_dim = 64};

  static DiffKvCache RandomCounts() {
    DiffKvCache cache({.geometry = kGeometry}, 400);
    std::mt19937 random(TestSeed());
    for (size_t i = 0; i < cache.counts.size(); i += kDiffKvTiers) {
      const auto high = static_cast<int32_t>(random() % 400);
      cache.counts[i + kDiffKvHigh] = high;
      cache.counts[i + kDiffKvLow] =
          static_cast<int32_t>(random() % (400u - static_cast<uint32_t>(high)));
    }
    return cache;
  }
};

TEST_F(DiffKvPagesGpuTest, IdsGoToHeadsAndTiersInOrderAndComeBackInIt) {
  const TestContext host(ReferenceOps(), 1);
  DiffKvCache want = RandomCounts();
  DiffKvCache got = want;
  const DeviceDiffKvCache device(got);
  ASSERT_TRUE(ReferenceOps()
                  .diffkv_assign_pages(
                      *host, {.geometry = kGeometry, .layer = want.layer(), .lease = &want.lease})
                  .ok());
  ASSERT_TRUE(
      ops()
          .diffkv_assign_pages(
              context(), {.geometry = kGeometry, .layer = device.layer(), .lease = device.lease()})
          .ok());
  Wait();
  device.Download(got);
  ASSERT_NO_FATAL_FAILURE(ExpectSameCache(got, want));

  const auto ids = DeviceArray<int32_t>::Poisoned(want.ids.size());
  const auto count = DeviceArray<int32_t>::Poisoned(1);
  ASSERT_TRUE(ops()
                  .diffkv_release_pages(context(),
                                        {.geometry = kGeometry,
                                         .layer = device.layer(),
                                         .ids = ids.data(),
                                         .count = count.data()})
                  .ok());
  Wait();
  device.Download(got);
  ASSERT_EQ(count.Get().front(), want.lease.used);
  std::vector<int32_t> released = ids.Get();
  released.resize(static_cast<size_t>(want.lease.used));
  EXPECT_EQ(released, std::vector<int32_t>(want.ids.begin(), want.ids.begin() + want.lease.used));
  EXPECT_EQ(got.counts, std::vector<int32_t>(got.counts.size(), 0));
}

TEST_F(DiffKvPagesGpuTest, ALeaseThatIsTooShortStaysAsItIs) {
  const TestContext host(ReferenceOps(), 1);
  DiffKvCache full = RandomCounts();
  ASSERT_TRUE(ReferenceOps()
                  .diffkv_assign_pages(
                      *host, {.geometry = kGeometry, .layer = full.layer(), .lease = &full.lease})
                  .ok());
  for (const int32_t missing : {1, 0}) {
    DiffKvCache cache = RandomCounts();
    cache.lease.count = full.lease.used - missing;
    DiffKvCache got = cache;
    const DeviceDiffKvCache device(got);
    ASSERT_TRUE(ops()
                    .diffkv_assign_pages(
                        context(),
                        {.geometry = kGeometry, .layer = device.layer(), .lease = device.lease()})
                    .ok());
    Wait();
    device.Download(got);
    EXPECT_EQ(got.lease.used, missing > 0 ? 0 : full.lease.used);
    EXPECT_EQ(got.table, missing > 0 ? cache.table : full.table);
  }
}

TEST_F(DiffKvPagesGpuTest, AHeadWithMorePagesThanColumnsLeavesTheLeaseAsItIs) {
  DiffKvCache cache = RandomCounts();
  cache.counts[2 * 40 + kDiffKvHigh] = 32 * (cache.columns + 1);
  DiffKvCache got = cache;
  const DeviceDiffKvCache device(got);
  ASSERT_TRUE(
      ops()
          .diffkv_assign_pages(
              context(), {.geometry = kGeometry, .layer = device.layer(), .lease = device.lease()})
          .ok());
  Wait();
  device.Download(got);
  ExpectSameCache(got, cache);
}

}  // namespace
}  // namespace baton::kernels::cuda
