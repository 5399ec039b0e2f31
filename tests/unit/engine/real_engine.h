// An engine over a model of the tree, with everything it borrows.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/kv/codec/codec_set.h"
#include "common/model/model.h"
#include "kernels/core/buffer.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/op_graphs.h"
#include "kernels/core/side_queues.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/op_table.h"

namespace baton::engine {

// `device_workspace_bytes`, `staging_bytes`: of a back end whose memory is not the host's.
struct RealEngine {
  RealEngine(const checkpoint::Checkpoint& checkpoint,
             Role role,
             int32_t chunk,
             int32_t budget,
             const kv::CodecPools& pools = {},
             const kernels::OpTable& ops = kernels::CpuOps(),
             kernels::MemorySpace& memory = kernels::HostMemory(),
             size_t device_workspace_bytes = size_t{64} << 20,
             kernels::SideQueues* side = nullptr,
             kernels::OpGraphs* graphs = nullptr,
             int64_t staging_bytes = int64_t{16} << 20,
             ReservationObserver* reservations = nullptr,
             kernels::CopyQueue* copies = nullptr) {
    EngineOptions options;
    options.role = role;
    options.kv_pool_bytes = 16 << 20;
    options.codec_pools = pools;
    options.staging_bytes = staging_bytes;
    options.step_token_budget = budget;
    options.prefill_chunk_tokens = chunk;
    options.max_running_sequences = 16;
    const kernels::ExecContext exec = {
        .pool = &threads,
        .workspace = &workspace,
        .device_workspace_bytes = memory.is_host() ? 0 : device_workspace_bytes,
        .memory = &memory,
        .side = side,
        .copies = copies,
        .graphs = graphs};
    auto model = model::Model::Load(checkpoint,
                                    ops,
                                    exec,
                                    {.max_step_rows = options.step_token_budget,
                                     .max_logit_rows = options.max_running_sequences});
    EXPECT_TRUE(model.ok()) << model.status();
    auto created = Engine::Create(*std::move(model), exec, ops, options, reservations, nullptr);
    EXPECT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
  }
  // Every dense page, slot and gauge is back where it was before the first request.
  bool AtBaseline() const {
    const EngineLoad load = engine->load();
    return load.pages_free == load.pages_total && load.pages_reserved == 0 &&
           load.reservations == 0 && load.running_sequences == 0 && load.waiting_requests == 0 &&
           load.waiting_tokens == 0 && !load.has_work;
  }

  kernels::ThreadPool threads{1};
  kernels::Buffer workspace;
  std::unique_ptr<Engine> engine;
};

}  // namespace baton::engine
