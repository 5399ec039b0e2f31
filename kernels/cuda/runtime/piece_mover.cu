#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/copy_queue.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/piece_mover.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 512;
// Blocks of a launch at most: half of an H200's multiprocessors have 4 MiB on their way, which is
// enough for all that its memory moves: 1.9 TB/s of large pieces, as with all of them.
constexpr uint32_t kBlocks = 64;
// Units that a thread has on their way at a time, of one piece and of pieces that it has to find;
// units of a block's part: 128 KiB.
constexpr uint32_t kUnitsAtOnce = 8;
constexpr int kFoundUnitsAtOnce = 4;
constexpr uint64_t kPartUnits = 2 * kThreads * kUnitsAtOnce;
// Pieces of a launch: what kernels take as parameters, 32,764 bytes (CUDA 12.1), so that nobody has
// to keep them until they have been read.
constexpr uint32_t kMaxPieces = 1360;

// A copy engine moves so much to the host in about the time that it takes to begin.
constexpr size_t kLeastCopyBytes = size_t{1} << 20;

using Unit = uint4;
static_assert(sizeof(Unit) == kMovedUnitBytes);

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

// Where a piece begins among all units.
__device__ uint64_t BeginOf(const PieceList& list, uint32_t piece) {
  return piece == 0 ? 0 : list.entries[piece - 1].end;
}

// A part of one piece.
__device__ void MoveWhole(Unit* target, const Unit* source, uint32_t units) {
#pragma unroll 1
  for (uint32_t begin = 0; begin < kPartUnits; begin += kThreads * kUnitsAtOnce) {
    Unit values[kUnitsAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kUnitsAtOnce; ++i) {
      const uint32_t unit = begin + i * kThreads + threadIdx.x;
      if (unit < units) values[i] = __ldcs(source + unit);
    }
#pragma unroll
    for (uint32_t i = 0; i < kUnitsAtOnce; ++i) {
      const uint32_t unit = begin + i * kThreads + threadIdx.x;
      if (unit < units) __stcs(target + unit, values[i]);
    }
  }
}

// The units of a part that begins in `piece`.
__device__ void MoveFound(const PieceList& list, uint32_t piece, uint64_t part, uint64_t part_end) {
  for (uint64_t begin = part + threadIdx.x; begin < part_end;
       begin += kThreads * kFoundUnitsAtOnce) {
    Unit values[kFoundUnitsAtOnce];
    Unit* targets[kFoundUnitsAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kFoundUnitsAtOnce; ++i) {
      const uint64_t unit = begin + i * kThreads;
      if (unit >= part_end) break;
      while (list.entries[piece].end <= unit) ++piece;
      const uint64_t place = unit - BeginOf(list, piece);
      values[i] = __ldcs(list.entries[piece].source + place);
      targets[i] = list.entries[piece].target + place;
    }
#pragma unroll
    for (int i = 0; i < kFoundUnitsAtOnce; ++i) {
      if (targets[i] != nullptr) __stcs(targets[i], values[i]);
    }
  }
}

// Half of a multiprocessor's registers, so that others find room beside a block.
__global__ void __launch_bounds__(kThreads, 2)
    MovePiecesKernel(const __grid_constant__ PieceList list) {
  const uint64_t units = list.entries[list.count - 1].end;
  for (uint64_t part = blockIdx.x * kPartUnits; part < units; part += gridDim.x * kPartUnits) {
    const uint64_t part_end = min(part + kPartUnits, units);
    const uint32_t piece = FindPiece(list, part);
    if (part_end <= list.entries[piece].end) {
      const uint64_t place = part - BeginOf(list, piece);
      MoveWhole(list.entries[piece].target + place,
                list.entries[piece].source + place,
                static_cast<uint32_t>(part_end - part));
    } else {
      MoveFound(list, piece, part, part_end);
    }
  }
}

bool IsOfUnits(const CopyQueue::Piece& piece) {
  return (reinterpret_cast<uintptr_t>(piece.target) | reinterpret_cast<uintptr_t>(piece.source) |
          piece.bytes) %
             sizeof(Unit) ==
         0;
}

bool IsOfHost(const std::byte* address) {
  cudaPointerAttributes attributes = {};
  return cudaPointerGetAttributes(&attributes, address) == cudaSuccess &&
         attributes.type == cudaMemoryTypeHost;
}

bool IsForKernel(const CopyQueue::Piece& piece) {
  return IsOfUnits(piece) && (piece.bytes < kLeastCopyBytes || !IsOfHost(piece.target));
}

absl::Status MoveByKernel(cudaStream_t stream, std::span<const CopyQueue::Piece> pieces) {
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

}  // namespace

absl::Status MovePieces(cudaStream_t stream, std::span<const CopyQueue::Piece> pieces) {
  std::vector<CopyQueue::Piece> for_kernel;
  absl::Status status;
  for (const CopyQueue::Piece& piece : pieces) {
    if (IsForKernel(piece)) {
      for_kernel.push_back(piece);
    } else if (status.ok()) {
      status = ToStatus(
          cudaMemcpyAsync(piece.target, piece.source, piece.bytes, cudaMemcpyDefault, stream),
          "move a piece of memory");
    }
  }
  return status.ok() ? MoveByKernel(stream, for_kernel) : status;
}

}  // namespace baton::kernels::cuda
