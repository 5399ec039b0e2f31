#include "common/worker/worker_flags.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/config/host_port.h"
#include "common/engine/engine.h"
#include "common/model/simulation.h"
#include "common/rpc/logging.h"
#include "common/rpc/tls_flags.h"
#include "common/trace/trace_flags.h"
#include "common/transport/ucx/peer_list.h"
#include "common/worker/pool_sizes.h"
#include "common/worker/worker_options.h"
#include "kernels/core/dtype.h"

ABSL_FLAG(std::string, model, "", "directory of a HuggingFace model: config.json, *.safetensors");
ABSL_FLAG(std::string, model_name, "", "name in metrics; empty: the last part of --model");
ABSL_FLAG(std::string, listen, "127.0.0.1:0", "host:port to serve gRPC on; port 0: a free one");
ABSL_FLAG(std::string,
          metrics_listen,
          "127.0.0.1:0",
          "host:port to serve /metrics on; port 0: a free one; empty: none");
ABSL_FLAG(std::string,
          advertise,
          "",
          "host:port under which peers reach --listen (port 0: the one in use); empty: as it is");
ABSL_FLAG(
    std::string,
    host_label,
    "",
    "name of the machine: the router likes pairs of workers with the same one; empty: not told");
ABSL_FLAG(std::string, rack_label, "", "the same for the rack");
ABSL_FLAG(std::string,
          transports,
          "grpc",
          "what carries KV between workers, preferred first: some of ipc, nccl, ucx and grpc, "
          "comma-separated");
ABSL_FLAG(int32_t,
          nccl_blocks,
          16,
          "thread blocks of the GPU that a transfer over nccl may take, on both ends; prefill's "
          "holds for its peers");
ABSL_FLAG(
    int64_t,
    nccl_slot_mib,
    32,
    "MiB of KV that go over nccl at once; each link takes four times that of both GPUs' memory");
ABSL_FLAG(std::string,
          ucx_listen,
          "",
          "host:port that peers connect to over ucx (decode); empty: the host of --listen and a "
          "free port");
ABSL_FLAG(std::string,
          ucx_allowed_peers,
          "127.0.0.0/8,::1",
          "addresses and networks (10.0.0.0/8) that may connect over ucx, comma-separated; over "
          "TCP they can write anywhere in this process");
ABSL_FLAG(int64_t,
          ucx_arena_mib,
          256,
          "memory that peers put KV into by RDMA, in MiB; each prefill worker has 8 of it");
ABSL_FLAG(int64_t,
          kv_segment_kib,
          0,
          "KV that is shipped at once (prefill), in KiB; 0: what a connection carries in 2 ms");
ABSL_FLAG(bool,
          require_rdma,
          false,
          "refuse to move KV by anything but RDMA; needs --transports=ucx");
ABSL_FLAG(double,
          kv_bandwidth_floor,
          0,
          "refuse to ship KV over connections that carry fewer Gbit/s (prefill); each is measured "
          "when it is made; 0: none is; needs --transports=ucx");
ABSL_FLAG(
    int64_t,
    retain_mib,
    256,
    "host memory for encoded KV that prefill retains until its request ends, in MiB; 0: none");
ABSL_FLAG(absl::Duration,
          retain_lease,
          absl::Minutes(10),
          "life of retained KV whose request nobody ends");
ABSL_FLAG(std::string, port_file, "", "file to write {\"grpc\": port, \"metrics\": port} to");
ABSL_FLAG(std::string, device, "cpu", "cpu or reference (cuda: in a build with it)");
ABSL_FLAG(int32_t, threads, 1, "compute threads; they read the weights, too");
ABSL_FLAG(std::string, compute, "bf16", "bf16 or fp32: type of weights and KV pages");
ABSL_FLAG(bool, random_weights, false, "make weights from --seed instead of reading them");
ABSL_FLAG(uint64_t, seed, 0, "seed of --random_weights; all workers need the same");
ABSL_FLAG(std::string,
          simulate,
          "",
          "compute no model: random tokens, in steps that take a time told by prefill_ms, "
          "prefill_tps, decode_ms and decode_seq_ms (all optional: key=number,...) or `default`; "
          "for load tests");
ABSL_FLAG(
    int64_t,
    kv_pool_mib,
    -1,
    "memory for dense KV pages, in which prompts are computed too, in MiB; -1: 1024, on a GPU "
    "an equal part of what --device_memory_share leaves");
ABSL_FLAG(int64_t, kv_pool_bytes, 0, "the same in bytes; 0: --kv_pool_mib");
ABSL_FLAG(int64_t,
          fp8_pool_mib,
          -1,
          "memory for KV format fp8 in MiB; 0: not served; -1: 256, on a GPU an equal part");
ABSL_FLAG(int64_t,
          diffkv_pool_mib,
          -1,
          "memory for KV format diffkv in MiB; 0: not served; -1: 256, on a GPU an equal part");
ABSL_FLAG(int64_t,
          shadowkv_pool_mib,
          -1,
          "memory for KV format shadowkv in MiB; 0: not served; -1: 256, on a GPU an equal part");
ABSL_FLAG(int64_t,
          shadowkv_host_pool_mib,
          0,
          "pinned memory of the host for values of KV format shadowkv with vplace=host, on a GPU "
          "that decodes, in MiB; 0: not served");
ABSL_FLAG(
    int64_t,
    hidden_pool_mib,
    -1,
    "memory for hidden states in transfer in MiB, SwiftKV models only; 0: not served; -1: 128, on "
    "a GPU a 32nd of what pools have");
ABSL_FLAG(
    int64_t,
    staging_mib,
    4096,
    "memory for prompts whose KV is on its way from a GPU (prefill: the host's) or to one (decode: "
    "the GPU's), in MiB; none on a CPU and with --role=both");
ABSL_FLAG(double,
          device_memory_share,
          0.92,
          "part of a GPU's memory that model, scratch memory and KV pools take together");
ABSL_FLAG(std::string,
          kv_calibration,
          "",
          "calibration file of the model (baton-lab calibrate); empty: none");
ABSL_FLAG(int32_t, page_tokens, 32, "tokens per KV page");
ABSL_FLAG(int32_t, step_token_budget, 4096, "most tokens in one step");
ABSL_FLAG(int32_t, prefill_chunk_tokens, 2048, "most prompt tokens of one sequence in one step");
ABSL_FLAG(int32_t, max_running_sequences, 256, "most sequences that run at once");
ABSL_FLAG(int32_t, max_waiting_requests, 1024, "most requests that wait for their first step");
ABSL_FLAG(int64_t, max_waiting_tokens, int64_t{1} << 22, "most prompt tokens that wait");
ABSL_FLAG(int64_t,
          max_sequence_tokens,
          0,
          "longest prompt + max_tokens; 0: the model's max_position_embeddings");
ABSL_FLAG(int32_t,
          max_kept_sessions,
          1024,
          "conversations whose KV is kept for their next turn; 0: none (decode and role both)");
ABSL_FLAG(absl::Duration,
          kept_ttl,
          absl::Minutes(10),
          "life of kept KV that no next turn comes for");
ABSL_FLAG(int32_t,
          max_extension_tokens,
          4096,
          "most new prompt tokens of a turn that decode computes by itself from kept KV; a longer "
          "prompt is prefilled afresh");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(10), "life of a reservation without a sign of life");
ABSL_FLAG(absl::Duration,
          stall_timeout,
          absl::Seconds(30),
          "health turns NOT_SERVING when there is work and no progress for this long: no step, and "
          "within one no layer");
ABSL_FLAG(absl::Duration,
          drain_timeout,
          absl::Seconds(30),
          "time that running requests get after SIGTERM");
ABSL_FLAG(bool, vllm_metrics, false, "publish vLLM's metric names as well");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warning or error");

namespace baton::worker {
namespace {

constexpr int64_t kMaxPoolBytes = int64_t{1} << 44;
constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

absl::Status CheckDuration(const char* name, absl::Duration value) {
  if (value <= absl::ZeroDuration() || value > absl::Hours(24)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "flag --", name, " is ", absl::FormatDuration(value), "; it must be in (0, 24h]"));
  }
  return absl::OkStatus();
}

absl::Status CheckAddresses(const WorkerOptions& options) {
  BATON_ASSIGN_OR_RETURN(const config::HostPort listen,
                         config::ParseHostPort(options.listen, /*allow_port_zero=*/true));
  const bool wildcard = listen.host == "0.0.0.0" || listen.host == "::";
  if (wildcard && options.advertise.empty()) {
    return absl::InvalidArgumentError(
        "flag --advertise is needed when --listen is every address of the machine: peers must know "
        "one of them");
  }
  if (!options.metrics_listen.empty()) {
    BATON_RETURN_IF_ERROR(
        config::ParseHostPort(options.metrics_listen, /*allow_port_zero=*/true).status());
  }
  if (!options.advertise.empty()) {
    BATON_RETURN_IF_ERROR(
        config::ParseHostPort(options.advertise, /*allow_port_zero=*/true).status());
  }
  return absl::OkStatus();
}

absl::Status CheckTransports(const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    BATON_RETURN_IF_ERROR(
        config::CheckFlagChoice("transports", name, {"ipc", "nccl", "ucx", "grpc"}));
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("flag --transports names ", name, " twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status SetTransports(WorkerOptions& options) {
  const std::string names = absl::GetFlag(FLAGS_transports);
  options.transports = absl::StrSplit(names, ',');
  BATON_RETURN_IF_ERROR(CheckTransports(options.transports));
  const int64_t segment_kib = absl::GetFlag(FLAGS_kv_segment_kib);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("kv_segment_kib", segment_kib, 0, 1 << 20));
  options.segment_bytes = segment_kib << 10;
  const int32_t blocks = absl::GetFlag(FLAGS_nccl_blocks);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("nccl_blocks", blocks, 1, 32));
  const int64_t slot_mib = absl::GetFlag(FLAGS_nccl_slot_mib);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("nccl_slot_mib", slot_mib, 1, 256));
  options.nccl = {.slot_bytes = static_cast<size_t>(slot_mib) << 20, .max_blocks = blocks};
  options.ucx.listen = absl::GetFlag(FLAGS_ucx_listen);
  options.ucx.allowed_peers = absl::GetFlag(FLAGS_ucx_allowed_peers);
  options.ucx.require_rdma = absl::GetFlag(FLAGS_require_rdma);
  if (options.ucx.require_rdma && names != "ucx") {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --require_rdma needs --transports=ucx; it is ", names));
  }
  const double floor = absl::GetFlag(FLAGS_kv_bandwidth_floor);
  if (floor != 0 && !(floor >= 0.1 && floor <= 10000 && names == "ucx")) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --kv_bandwidth_floor is ",
                     floor,
                     " with --transports=",
                     names,
                     "; it must be 0, or 0.1 to 10000 (Gbit/s) with --transports=ucx"));
  }
  options.ucx.bandwidth_floor = floor * 1e9 / 8;
  if (!options.ucx.listen.empty()) {
    BATON_RETURN_IF_ERROR(
        config::ParseHostPort(options.ucx.listen, /*allow_port_zero=*/true).status());
  }
  const int64_t arena_mib = absl::GetFlag(FLAGS_ucx_arena_mib);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("ucx_arena_mib", arena_mib, 8, kMaxPoolBytes >> 20));
  options.ucx.arena_bytes = arena_mib << 20;
  return WithContext(transport::ucx::PeerList::Parse(options.ucx.allowed_peers).status(),
                     "flag --ucx_allowed_peers");
}

absl::Status SetRetention(WorkerOptions& options) {
  const int64_t retain_mib = absl::GetFlag(FLAGS_retain_mib);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("retain_mib", retain_mib, 0, kMaxPoolBytes >> 20));
  options.retain_bytes = retain_mib << 20;
  options.retain_lease = absl::GetFlag(FLAGS_retain_lease);
  return CheckDuration("retain_lease", options.retain_lease);
}

// A pool's flag in bytes; without a value for -1.
absl::StatusOr<std::optional<int64_t>> PoolBytes(const char* name, int64_t mib) {
  BATON_RETURN_IF_ERROR(config::CheckFlagRange(name, mib, -1, kMaxPoolBytes >> 20));
  return mib < 0 ? std::nullopt : std::make_optional(mib << 20);
}

absl::StatusOr<PoolSizes> PoolSizesFromFlags() {
  PoolSizes sizes;
  const int64_t dense_bytes = absl::GetFlag(FLAGS_kv_pool_bytes);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("kv_pool_bytes", dense_bytes, 0, kMaxPoolBytes));
  BATON_ASSIGN_OR_RETURN(sizes.dense, PoolBytes("kv_pool_mib", absl::GetFlag(FLAGS_kv_pool_mib)));
  if (dense_bytes > 0) {
    sizes.dense = dense_bytes;
  }
  if (sizes.dense == 0) {
    return absl::InvalidArgumentError(
        "flag --kv_pool_mib is 0; every prompt is computed in dense pages: it must be above 0");
  }
  BATON_ASSIGN_OR_RETURN(sizes.fp8, PoolBytes("fp8_pool_mib", absl::GetFlag(FLAGS_fp8_pool_mib)));
  BATON_ASSIGN_OR_RETURN(sizes.diffkv,
                         PoolBytes("diffkv_pool_mib", absl::GetFlag(FLAGS_diffkv_pool_mib)));
  BATON_ASSIGN_OR_RETURN(sizes.shadowkv,
                         PoolBytes("shadowkv_pool_mib", absl::GetFlag(FLAGS_shadowkv_pool_mib)));
  BATON_ASSIGN_OR_RETURN(
      sizes.shadowkv_host,
      PoolBytes("shadowkv_host_pool_mib", absl::GetFlag(FLAGS_shadowkv_host_pool_mib)));
  BATON_ASSIGN_OR_RETURN(sizes.hidden,
                         PoolBytes("hidden_pool_mib", absl::GetFlag(FLAGS_hidden_pool_mib)));
  return sizes;
}

absl::Status SetSimulation(WorkerOptions& options) {
  const std::string text = absl::GetFlag(FLAGS_simulate);
  if (text.empty()) {
    return absl::OkStatus();
  }
  if (options.device != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --simulate needs --device=cpu; it is ", options.device));
  }
  const auto simulation = model::ParseSimulation(text);
  BATON_RETURN_IF_ERROR(WithContext(simulation.status(), "flag --simulate"));
  options.simulation = *simulation;
  return absl::OkStatus();
}

absl::StatusOr<engine::EngineOptions> EngineOptionsFromFlags(engine::Role role) {
  engine::EngineOptions options;
  options.role = role;
  BATON_RETURN_IF_ERROR(
      config::CheckFlagChoice("compute", absl::GetFlag(FLAGS_compute), {"bf16", "fp32"}));
  options.page_dtype =
      absl::GetFlag(FLAGS_compute) == "bf16" ? kernels::DType::kBF16 : kernels::DType::kF32;
  const int64_t staging_mib = absl::GetFlag(FLAGS_staging_mib);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("staging_mib", staging_mib, 1, kMaxPoolBytes >> 20));
  options.staging_bytes = staging_mib << 20;
  options.page_tokens = absl::GetFlag(FLAGS_page_tokens);
  options.step_token_budget = absl::GetFlag(FLAGS_step_token_budget);
  options.prefill_chunk_tokens = absl::GetFlag(FLAGS_prefill_chunk_tokens);
  options.max_running_sequences = absl::GetFlag(FLAGS_max_running_sequences);
  options.max_waiting_requests = absl::GetFlag(FLAGS_max_waiting_requests);
  options.max_waiting_tokens = absl::GetFlag(FLAGS_max_waiting_tokens);
  options.max_sequence_tokens = absl::GetFlag(FLAGS_max_sequence_tokens);
  options.lease = absl::GetFlag(FLAGS_lease);
  options.max_kept_sessions = absl::GetFlag(FLAGS_max_kept_sessions);
  options.kept_ttl = absl::GetFlag(FLAGS_kept_ttl);
  options.max_extension_tokens = absl::GetFlag(FLAGS_max_extension_tokens);
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("max_kept_sessions", options.max_kept_sessions, 0, 1 << 20));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("max_extension_tokens", options.max_extension_tokens, 0, kMaxInt));
  BATON_RETURN_IF_ERROR(CheckDuration("kept_ttl", options.kept_ttl));
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("page_tokens", options.page_tokens, 1, 4096));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("step_token_budget", options.step_token_budget, 1, 1 << 20));
  BATON_RETURN_IF_ERROR(config::CheckFlagRange(
      "prefill_chunk_tokens", options.prefill_chunk_tokens, 1, options.step_token_budget));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("max_running_sequences", options.max_running_sequences, 1, 1 << 16));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("max_waiting_requests", options.max_waiting_requests, 1, 1 << 20));
  BATON_RETURN_IF_ERROR(config::CheckFlagRange(
      "max_waiting_tokens", options.max_waiting_tokens, 1, int64_t{1} << 40));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("max_sequence_tokens", options.max_sequence_tokens, 0, kMaxInt));
  BATON_RETURN_IF_ERROR(CheckDuration("lease", options.lease));
  return options;
}

}  // namespace

absl::StatusOr<WorkerOptions> WorkerOptionsFromFlags(engine::Role role,
                                                     const std::string& version) {
  BATON_RETURN_IF_ERROR(config::CheckFlagChoice(
      "log_level", absl::GetFlag(FLAGS_log_level), {"trace", "debug", "info", "warning", "error"}));
  BATON_RETURN_IF_ERROR(rpc::InitLogging(absl::GetFlag(FLAGS_log_level)));
  WorkerOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.model_name = absl::GetFlag(FLAGS_model_name);
  options.version = version;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.metrics_listen = absl::GetFlag(FLAGS_metrics_listen);
  options.advertise = absl::GetFlag(FLAGS_advertise);
  options.host_label = absl::GetFlag(FLAGS_host_label);
  options.rack_label = absl::GetFlag(FLAGS_rack_label);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  options.tls = rpc::TlsOptionsFromFlags();
  options.device = absl::GetFlag(FLAGS_device);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.random_weights = absl::GetFlag(FLAGS_random_weights);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.kv_calibration = absl::GetFlag(FLAGS_kv_calibration);
  options.stall_timeout = absl::GetFlag(FLAGS_stall_timeout);
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  options.vllm_metrics = absl::GetFlag(FLAGS_vllm_metrics);
  BATON_ASSIGN_OR_RETURN(options.trace, trace::SpanFileOptionsFromFlags());
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("model", options.model_dir));
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("threads", options.threads, 1, 1024));
  BATON_RETURN_IF_ERROR(CheckAddresses(options));
  BATON_RETURN_IF_ERROR(SetTransports(options));
  BATON_RETURN_IF_ERROR(SetSimulation(options));
  BATON_RETURN_IF_ERROR(CheckDuration("stall_timeout", options.stall_timeout));
  BATON_RETURN_IF_ERROR(CheckDuration("drain_timeout", options.drain_timeout));
  BATON_RETURN_IF_ERROR(SetRetention(options));
  BATON_ASSIGN_OR_RETURN(options.engine, EngineOptionsFromFlags(role));
  options.compute = options.engine.page_dtype;
  BATON_ASSIGN_OR_RETURN(options.pools, PoolSizesFromFlags());
  options.device_memory_share = absl::GetFlag(FLAGS_device_memory_share);
  if (!(options.device_memory_share > 0.0 && options.device_memory_share <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "flag --device_memory_share is ", options.device_memory_share, "; it must be in (0, 1]"));
  }
  return options;
}

}  // namespace baton::worker
