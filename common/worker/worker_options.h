// What a prefill or decode worker is told on its command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "common/engine/engine.h"
#include "common/model/simulation.h"
#include "common/rpc/tls.h"
#include "common/trace/span_file.h"
#include "common/transport/ucx/ucx_transport.h"
#include "common/worker/pool_sizes.h"
#include "kernels/core/device_link.h"
#include "kernels/core/dtype.h"

namespace baton::worker {

struct WorkerOptions {
  std::string model_dir = {};
  // Name in metrics and server info; empty: the last part of model_dir.
  std::string model_name = {};
  std::string version = {};

  // host:port; port 0 takes a free one. Loopback unless told otherwise.
  std::string listen = "127.0.0.1:0";
  // host:port of /metrics; empty: no metrics endpoint.
  std::string metrics_listen = {};
  // host:port under which peers reach this worker (port 0: the one in use); empty: the listen
  // address.
  std::string advertise = {};
  // Labels of where the worker stands, for the router's choice of pairs; empty: not told.
  std::string host_label = {};
  std::string rack_label = {};
  // Receives the ports once everything listens; empty: none.
  std::string port_file = {};
  rpc::TlsOptions tls = {};
  // Names of transports, preferred first: ipc, nccl, ucx, grpc.
  std::vector<std::string> transports = {"grpc"};
  // listen empty: the host of `listen` and a free port; advertise_host empty: that of `advertise`.
  transport::UcxTransportOptions ucx = {};
  kernels::LinkSizes nccl = {};  // of links that prefill opens
  // Prefill: bytes of KV that are shipped at once; 0: by what each connection carries.
  int64_t segment_bytes = 0;
  // Prefill: host memory for encoded KV of requests that have not ended; 0: none is retained. And
  // how long it is retained when nobody says that its request has ended.
  int64_t retain_bytes = int64_t{256} << 20;
  absl::Duration retain_lease = absl::Minutes(10);

  std::string device = "cpu";
  // Compute threads, the executor thread included.
  int threads = 1;
  // bf16: weights and KV pages bf16. fp32: both fp32.
  kernels::DType compute = kernels::DType::kBF16;
  bool random_weights = false;
  uint64_t seed = 0;
  // Set: the model is not computed; its steps take this time. Needs device cpu.
  std::optional<model::Simulation> simulation = {};
  // File of the model's KV calibration; empty: none.
  std::string kv_calibration = {};
  // page_dtype follows `compute`, calibration what LoadCompute read, pools `pools`.
  engine::EngineOptions engine = {};
  PoolSizes pools = {};
  // Of a device's memory: what model, scratch memory and pools may take together; the rest is for
  // what comes and goes with sequences.
  double device_memory_share = 0.92;

  // Work without a finished step for so long means that the worker is stuck.
  absl::Duration stall_timeout = absl::Seconds(30);
  // Running requests get so long to finish after SIGTERM.
  absl::Duration drain_timeout = absl::Seconds(30);
  bool vllm_metrics = false;
  trace::SpanFileOptions trace = {};  // path empty: no spans
};

}  // namespace baton::worker
