#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/copy_queue.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/piece_mover.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 512;
// Blocks of a launch at most: half of an H200's multiprocessors have 2 MiB on their way, which is
// about what its memory answers in a microsecond.
constexpr uint32_t kBlocks = 64;
// Units that a thread has on their way at a time, and units of a block's part: 64 KiB.
constexpr int kUnitsAtOnce = 4;
constexpr uint64_t kPartUnits = 2 * kThreads * kUnitsAtOnce;
// Pieces of a launch: what kernels take as parameters, 32,764 bytes (CUDA 12.1), so that nobody has
// to keep them until they have been read.
constexpr uint32_t kMaxPieces = 1360;

using Unit = uint4;

struct PieceList {
  struct Entry {
    Unit* target;
    const Unit* source;
    uint64_t end;  // units of this piece and those before
  };

  uint32_t count;
  Entry entries[kMaxPieces];
};
static_assert(sizeof(PieceList) <= 32764);

// The first piece that ends behind the unit.
__device__ uint32_t FindPiece(const PieceList& list, uint64_t unit) {
  uint32_t begin = 0;
  uint32_t end = list.count - 1;
  while (begin < end) {
    const uint32_t middle = (begin + end) / 2;
    if (list.entries[middle].end > unit) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

__global__ void __launch_bounds__(kThreads)
    MovePiecesKernel(const __grid_constant__ PieceList list) {
  const uint64_t units = list.entries[list.count - 1].end;
  for (uint64_t part = blockIdx.x * kPartUnits; part < units; part += gridDim.x * kPartUnits) {
    const uint64_t part_end = min(part + kPartUnits, units);
    uint32_t piece = FindPiece(list, part);
    for (uint64_t begin = part + threadIdx.x; begin < part_end; begin += kThreads * kUnitsAtOnce) {
      Unit values[kUnitsAtOnce];
      Unit* targets[kUnitsAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kUnitsAtOnce; ++i) {
        const uint64_t unit = begin + i * kThreads;
        if (unit >= part_end) break;
        while (list.entries[piece].end <= unit) ++piece;
        const uint64_t place = unit - (piece == 0 ? 0 : list.entries[piece - 1].end);
        values[i] = __ldcs(list.entries[piece].source + place);
        targets[i] = list.entries[piece].target + place;
      }
#pragma unroll
      for (int i = 0; i < kUnitsAtOnce; ++i) {
        if (targets[i] != nullptr) __stcs(targets[i], values[i]);
      }
    }
  }
}

}  // namespace

bool IsMovable(const CopyQueue::Piece& piece) {
  return (reinterpret_cast<uintptr_t>(piece.target) | reinterpret_cast<uintptr_t>(piece.source) |
          piece.bytes) %
             sizeof(Unit) ==
         0;
}

absl::Status MovePieces(cudaStream_t stream, std::span<const CopyQueue::Piece> pieces) {
  PieceList list = {};
  while (!pieces.empty()) {
    uint64_t units = 0;
    list.count = static_cast<uint32_t>(std::min<size_t>(pieces.size(), kMaxPieces));
    for (uint32_t i = 0; i < list.count; ++i) {
      units += pieces[i].bytes / sizeof(Unit);
      list.entries[i] = {.target = reinterpret_cast<Unit*>(pieces[i].target),
                         .source = reinterpret_cast<const Unit*>(pieces[i].source),
                         .end = units};
    }
    pieces = pieces.subspan(list.count);
    const uint64_t parts = (units + kPartUnits - 1) / kPartUnits;
    if (parts == 0) continue;
    const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(parts, kBlocks));
    MovePiecesKernel<<<blocks, kThreads, 0, stream>>>(list);
    if (absl::Status status = ToStatus(cudaGetLastError(), "move pieces of memory"); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda
