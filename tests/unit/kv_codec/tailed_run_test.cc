#include "common/kv/codec/shadowkv/tailed_run.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/memory.h"
#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kv {
namespace {

using kernels::GuardedMemory;

constexpr size_t kUnit = RunPool::kUnitBytes;
constexpr size_t kPromptBytes = 3 * kUnit;

// Two parts.
TailMap Map(size_t first, size_t second) { return {.begins = {0, first, first + second}}; }

// Where a pool is, and who works on it.
enum class Place { kHost, kDevice, kHostOfADevice };

class TailedRunTest : public testing::TestWithParam<Place> {
 protected:
  TailedRunTest() : pool_(*RunPool::Create(64 * int64_t{kUnit}, space())) {}
  static bool on_host() { return GetParam() != Place::kDevice; }
  static bool ops_on_host() { return GetParam() == Place::kHost; }
  static kernels::MemorySpace& space() {
    return on_host() ? kernels::HostMemory() : GuardedMemory::Get();
  }
  std::unique_ptr<TailedRun> Take(const TailMap& tails) const {
    return TailedRun::Take(*pool_, ops_on_host(), kPromptBytes, tails);
  }
  // Writes `bytes` bytes of a part, from `value` up, or reads whether they are there.
  static void Write(const TailedRun& run, size_t part, size_t bytes, int value) {
    ASSERT_TRUE(space().Upload(run.tail(part), Bytes(bytes, value).data(), bytes).ok());
  }
  static void Expect(const TailedRun& run, size_t part, size_t bytes, int value) {
    std::vector<std::byte> got(bytes);
    ASSERT_TRUE(space().Download(got.data(), run.tail(part), bytes).ok());
    EXPECT_EQ(got, Bytes(bytes, value)) << "part " << part;
  }
  void ExpectTaken(const TailedRun& run, int64_t units) const {
    EXPECT_EQ(pool_->units_total() - pool_->units_free(), units);
    EXPECT_EQ(run.ReservedBytes(), units * int64_t{kUnit});
  }
  void Grow(TailedRun& run, const TailMap& tails) {
    const std::optional<RunPool::Run> more = run.TakeFor(tails);
    ASSERT_TRUE(more.has_value());
    run.Grow(*more, tails);
  }

  const std::unique_ptr<RunPool> pool_;

 private:
  static std::vector<std::byte> Bytes(size_t count, int value) {
    std::vector<std::byte> bytes(count);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(value++);
    }
    return bytes;
  }
};

TEST_P(TailedRunTest, TailsThatGrowBeginWithWhatTheyHeld) {
  auto run = Take(Map(kUnit, 2 * kUnit));
  ASSERT_NE(run, nullptr);
  ExpectTaken(*run, 6);
  Write(*run, 0, 100, 7);
  Write(*run, 1, 300, 99);
  std::byte* const prompt = run->prompt();

  // Once behind the prompt, then in a run of their own.
  for (const size_t part_units : {size_t{3}, size_t{5}}) {
    Grow(*run, Map(part_units * kUnit, 4 * kUnit));
    ASSERT_TRUE(run->MoveTails(space()).ok());
    Expect(*run, 0, 100, 7);
    Expect(*run, 1, 300, 99);
    run->Trim();
    ExpectTaken(*run, 3 + static_cast<int64_t>(part_units) + 4);
    EXPECT_EQ(run->prompt(), prompt);
    Expect(*run, 1, 300, 99);
  }

  // A tail that was promised more than it came to hold, and is now promised less.
  Grow(*run, Map(kUnit, kUnit));
  ASSERT_TRUE(run->MoveTails(space()).ok());
  Expect(*run, 0, 100, 7);
  Expect(*run, 1, 300, 99);
  run->Trim();
  ExpectTaken(*run, 5);
  run.reset();
  EXPECT_EQ(pool_->units_free(), pool_->units_total());
}

// What a device reads until they are moved stays taken until Trim.
TEST_P(TailedRunTest, MemoryOfTailsThatMoveComesBack) {
  for (const int moves : {0, 1, 2}) {
    auto run = Take(Map(kUnit, kUnit));
    Grow(*run, Map(2 * kUnit, kUnit));
    ExpectTaken(*run, ops_on_host() ? 6 : 8);
    if (moves > 0) {
      ASSERT_TRUE(run->MoveTails(space()).ok());
      run->Trim();
      ExpectTaken(*run, 6);
    }
    if (moves > 1) {
      Grow(*run, Map(3 * kUnit, kUnit));
      ExpectTaken(*run, ops_on_host() ? 7 : 10);
    }
    run.reset();
    EXPECT_EQ(pool_->units_free(), pool_->units_total());
  }
}

// A device may still write what a sequence had that has ended, and whose memory this is now: bytes
// that are brought there before the ops of the next step would be lost.
TEST_P(TailedRunTest, TailsMoveInOrderWithTheOpsThatUseThem) {
  auto run = Take(Map(kUnit, kUnit));
  Write(*run, 0, 100, 7);
  Grow(*run, Map(2 * kUnit, kUnit));
  if (!ops_on_host()) {
    Write(*run, 0, 100, 55);
  }
  ASSERT_TRUE(run->MoveTails(space()).ok());
  Expect(*run, 0, 100, 7);
}

TEST_P(TailedRunTest, OnlyTheHostGivesBackWhatLiesBehindTails) {
  auto run = Take(Map(4 * kUnit, 4 * kUnit));
  Write(*run, 0, 100, 7);
  Write(*run, 1, 300, 99);
  run->Shrink(Map(kUnit, kUnit));
  Expect(*run, 0, 100, 7);
  Expect(*run, 1, 300, 99);
  ExpectTaken(*run, on_host() ? 5 : 11);
}

std::string NameOf(const testing::TestParamInfo<Place>& instance) {
  switch (instance.param) {
    case Place::kHost:
      return "Host";
    case Place::kDevice:
      return "Device";
    case Place::kHostOfADevice:
      return "HostOfADevice";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Places,
                         TailedRunTest,
                         testing::Values(Place::kHost, Place::kDevice, Place::kHostOfADevice),
                         NameOf);

}  // namespace
}  // namespace baton::kv
