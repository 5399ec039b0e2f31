// An engine on the host or on a device of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_format.h"
#include "kernels/core/dtype.h"
#include "tests/kernels/device_double/deferred_queues.h"
#include "tests/kernels/device_double/device_double.h"
#include "tests/kernels/device_double/gathering_memory.h"
#include "tests/kernels/device_double/late_copies.h"
#include "tests/kernels/device_double/replayed_graphs.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/real_engine.h"

namespace baton::engine {

constexpr kv::CodecPools kPlacedPools = {.fp8_bytes = 8 << 20,
                                         .diffkv_bytes = 8 << 20,
                                         .shadowkv_bytes = 16 << 20,
                                         .hidden_bytes = 4 << 20};
// Values of vplace=host lie in the host's memory where a device decodes.
inline kv::CodecPools PlacedPoolsOfDevice(Role role) {
  kv::CodecPools pools = kPlacedPools;
  if (role != Role::kPrefill) {
    pools.shadowkv_host_bytes = 8 << 20;
  }
  return pools;
}
constexpr size_t kPlacedWorkspaceBytes = size_t{64} << 20;

enum class Place { kHost, kDevice };

// An engine on the host or on a device of its own.
struct PlacedEngine {
  PlacedEngine(const checkpoint::Checkpoint& checkpoint,
               Role role,
               Place place,
               int32_t chunk,
               int64_t staging_bytes = int64_t{16} << 20,
               ReservationObserver* reservations = nullptr)
      : on_device(place == Place::kDevice) {
    if (on_device) {
      real = std::make_unique<RealEngine>(checkpoint,
                                          role,
                                          chunk,
                                          /*budget=*/100,
                                          PlacedPoolsOfDevice(role),
                                          kernels::DeviceDoubleOps(kernels::DType::kF32),
                                          memory,
                                          kPlacedWorkspaceBytes,
                                          &side,
                                          &graphs,
                                          staging_bytes,
                                          reservations,
                                          &copies);
    } else {
      real = std::make_unique<RealEngine>(checkpoint, role, chunk, /*budget=*/100, kPlacedPools);
    }
  }
  Engine& engine() const { return *real->engine; }
  // Every page of every pool comes back, and all memory of hand-offs.
  void ExpectFree() const {
    const auto free = [this] {
      const EngineLoad load = engine().load();
      return real->AtBaseline() && load.orphaned_bytes == 0 &&
             std::all_of(
                 load.format_pools.begin(), load.format_pools.end(), [](const FormatPool& pool) {
                   return pool.bytes.free == pool.bytes.total;
                 });
    };
    EXPECT_TRUE(Eventually(free));
  }
  // Whether memory of hand-offs is taken, now or soon.
  bool StagesNow() const {
    const EngineLoad load = engine().load();
    return std::any_of(
        load.format_pools.begin(), load.format_pools.end(), [](const FormatPool& pool) {
          return pool.format == "staging" && pool.bytes.free < pool.bytes.total;
        });
  }
  bool StagesSomething() const {
    return Eventually([this] { return StagesNow(); });
  }

  const bool on_device;
  kernels::DeferredQueues side{4, kPlacedWorkspaceBytes};
  kernels::ReplayedGraphs graphs;
  mutable kernels::GatheringMemory memory{graphs};
  // Marks are waited for by the engine.
  mutable kernels::LateCopies copies;
  std::unique_ptr<RealEngine> real;
};

}  // namespace baton::engine
