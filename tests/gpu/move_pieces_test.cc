// Moves of many pieces of memory, by a kernel, and large ones to the host by the copy engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "kernels/core/copy_queue.h"
#include "kernels/cuda/runtime/copy_stream.h"
#include "kernels/cuda/runtime/device_space.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

using Piece = CopyQueue::Piece;

// Places of pieces, in bytes from the beginnings of source and target.
struct Place {
  size_t source = 0;
  size_t target = 0;
  size_t bytes = 0;
};

// Pieces of so many bytes one behind the other in the source; in the target in another order, with
// a gap behind each.
std::vector<Place> Scatter(const std::vector<size_t>& sizes, std::mt19937& random) {
  std::vector<Place> places;
  size_t source = 0;
  for (const size_t bytes : sizes) {
    places.push_back({.source = source, .target = 0, .bytes = bytes});
    source += bytes;
  }
  std::ranges::shuffle(places, random);
  size_t target = 0;
  for (Place& place : places) {
    place.target = target;
    target += place.bytes + 16 * (random() % 3);
  }
  std::ranges::shuffle(places, random);
  return places;
}

class MovePiecesGpuTest : public GpuTest {
 protected:
  // Moves and compares all bytes of the target, which is the device's or pinned memory.
  static void Check(DeviceSpace& space, const std::vector<Place>& places, bool pinned) {
    size_t source_bytes = 0;
    size_t target_bytes = 64;
    for (const Place& place : places) {
      source_bytes = std::max(source_bytes, place.source + place.bytes);
      target_bytes = std::max(target_bytes, place.target + place.bytes + 64);
    }
    std::vector<uint8_t> values(source_bytes);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<uint8_t>(i * 37 + i / 251 % 255);
    }
    std::vector<uint8_t> want(target_bytes, 0xff);
    const DeviceArray<uint8_t> source(values);
    const auto target = DeviceArray<uint8_t>::Poisoned(target_bytes);
    const auto staged = space.staging().Allocate(target_bytes);
    ASSERT_TRUE(staged.ok()) << staged.status();
    std::memset(staged->data(), 0xff, target_bytes);
    std::byte* const base = pinned ? staged->data() : reinterpret_cast<std::byte*>(target.data());
    std::vector<Piece> pieces;
    for (const Place& place : places) {
      pieces.push_back({.target = base + place.target,
                        .source = reinterpret_cast<const std::byte*>(source.data()) + place.source,
                        .bytes = place.bytes});
      std::copy_n(values.begin() + static_cast<ptrdiff_t>(place.source),
                  place.bytes,
                  want.begin() + static_cast<ptrdiff_t>(place.target));
    }
    const auto copies = CopyStream::Create();
    ASSERT_TRUE(copies.ok()) << copies.status();
    ASSERT_TRUE((*copies)->StartMoves(pieces).ok());
    pieces.assign(pieces.size(), {});  // nobody looks at them any more
    const auto mark = (*copies)->MakeMark();
    ASSERT_TRUE(mark.ok()) << mark.status();
    ASSERT_TRUE((*mark)->Wait().ok());
    const auto* const landed = reinterpret_cast<const uint8_t*>(staged->data());
    const std::vector<uint8_t> got =
        pinned ? std::vector<uint8_t>(landed, landed + target_bytes) : target.Get();
    const auto [at, wanted] = std::ranges::mismatch(got, want);
    ASSERT_EQ(at - got.begin(), std::ssize(got)) << SeedMessage();
  }
};

TEST_F(MovePiecesGpuTest, EveryPieceArrivesAndNothingElseIsWritten) {
  DeviceSpace space(queue());
  std::mt19937 random(TestSeed());
  for (const size_t count : {1u, 2u, 1359u, 1360u, 1361u, 5000u}) {
    std::vector<size_t> sizes(count);
    for (size_t& bytes : sizes) {
      bytes = 16 * (random() % 16 == 0 ? random() % 8000 : random() % 300);
    }
    Check(space, Scatter(sizes, random), /*pinned=*/false);
  }
}

TEST_F(MovePiecesGpuTest, LargePiecesAndPiecesOfAnyLengthToo) {
  DeviceSpace space(queue());
  std::mt19937 random(TestSeed());
  for (const bool pinned : {false, true}) {
    std::vector<size_t> sizes = {
        size_t{1} << 20, (size_t{1} << 20) - 16, (size_t{3} << 20) + 7, (size_t{5} << 20) + 48};
    for (int i = 0; i < 200; ++i) {
      sizes.push_back(random() % 5000);
    }
    Check(space, Scatter(sizes, random), pinned);
  }
}

TEST_F(MovePiecesGpuTest, NoPiecesAreNoError) {
  const auto copies = CopyStream::Create();
  ASSERT_TRUE(copies.ok()) << copies.status();
  EXPECT_TRUE((*copies)->StartMoves({}).ok());
}

}  // namespace
}  // namespace baton::kernels::cuda
