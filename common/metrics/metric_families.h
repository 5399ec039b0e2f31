// Every metric family that Baton exports, in one place: name, help, labels and buckets.
//
// Conventions (serving.md 2.4): prefix baton_, base units (seconds, bytes), _total on counters, and
// the constant labels `model_name` and `role` on everything. No request id, prompt or peer address
// is ever a label value. A name or label that changes here breaks dashboards: tests/unit/metrics
// holds the golden exposition.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace baton::metrics {

// N is the number of labels besides the constant ones; Registry checks it when compiling.
template <size_t N>
struct CounterFamily {
  std::string_view name;
  std::string_view help;
  std::array<std::string_view, N> labels;
};

template <size_t N>
struct GaugeFamily {
  std::string_view name;
  std::string_view help;
  std::array<std::string_view, N> labels;
};

template <size_t N>
struct HistogramFamily {
  std::string_view name;
  std::string_view help;
  std::array<std::string_view, N> labels;
  std::span<const double> buckets;  // ascending upper bounds
};

// --- Buckets in seconds (serving.md 2.2: vLLM's, and the finer ones of 2.4 at the low end)
// --------
inline constexpr std::array kTimeToFirstTokenBuckets = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
    1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
inline constexpr std::array kInterTokenLatencyBuckets = {
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,
    0.3,    0.4,   0.5,   0.75,  1.0,   2.5,    5.0,  7.5,   10.0, 20.0,  40.0, 80.0};
inline constexpr std::array kRequestLatencyBuckets = {
    0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
inline constexpr std::array kStageBuckets = {0.0001,
                                             0.0002,
                                             0.0005,
                                             0.001,
                                             0.002,
                                             0.005,
                                             0.01,
                                             0.02,
                                             0.05,
                                             0.1,
                                             0.2,
                                             0.5,
                                             1.0,
                                             2.0,
                                             5.0,
                                             10.0,
                                             30.0,
                                             120.0};

// --- Latencies as the client sees them (router, and a worker of role both)
// ------------------------
inline constexpr HistogramFamily<0> kTimeToFirstToken = {
    "baton_time_to_first_token_seconds",
    "Time from accepting a request until its first token is available.",
    {},
    kTimeToFirstTokenBuckets};
inline constexpr HistogramFamily<0> kInterTokenLatency = {"baton_inter_token_latency_seconds",
                                                          "Gap between two tokens of one sequence.",
                                                          {},
                                                          kInterTokenLatencyBuckets};
inline constexpr HistogramFamily<0> kRequestLatency = {
    "baton_e2e_request_latency_seconds",
    "Time from accepting a request until its last token.",
    {},
    kRequestLatencyBuckets};
inline constexpr HistogramFamily<0> kRequestQueueTime = {
    "baton_request_queue_time_seconds",
    "Time a request waits in this service before its work starts.",
    {},
    kRequestLatencyBuckets};

// --- Where the time goes; stage names in `stage::`
// --------------------------------------------------
inline constexpr HistogramFamily<1> kStageDuration = {"baton_stage_duration_seconds",
                                                      "Time a request spends in one stage.",
                                                      {"stage"},
                                                      kStageBuckets};
namespace stage {
inline constexpr std::string_view kAdmit = "admit";
inline constexpr std::string_view kRoute = "route";
inline constexpr std::string_view kReserve = "reserve";
inline constexpr std::string_view kPrefillQueue = "prefill_queue";
inline constexpr std::string_view kPrefillForward = "prefill_forward";
inline constexpr std::string_view kCompress = "compress";
inline constexpr std::string_view kTransfer = "transfer";
inline constexpr std::string_view kDecompress = "decompress";
inline constexpr std::string_view kDecodeQueue = "decode_queue";
inline constexpr std::string_view kFirstDecodeStep = "first_decode_step";
inline constexpr std::string_view kDecode = "decode";
}  // namespace stage

inline constexpr HistogramFamily<0> kStepDuration = {
    "baton_step_duration_seconds", "Duration of one engine step.", {}, kStageBuckets};
inline constexpr CounterFamily<1> kStepTokens = {
    "baton_step_tokens_total", "Tokens run through the model, by phase.", {"phase"}};

// --- Requests and tokens
// ----------------------------------------------------------------------------
inline constexpr CounterFamily<1> kRequests = {
    "baton_requests_total", "Requests ended, by gRPC status code.", {"code"}};
inline constexpr GaugeFamily<0> kRequestsRunning = {
    "baton_requests_running", "Sequences (router: requests) running now.", {}};
inline constexpr GaugeFamily<0> kRequestsWaiting = {
    "baton_requests_waiting", "Requests waiting for their work to start.", {}};
inline constexpr GaugeFamily<0> kWaitingTokens = {
    "baton_waiting_tokens", "Prompt tokens not yet prefilled.", {}};
inline constexpr CounterFamily<0> kPromptTokens = {
    "baton_prompt_tokens_total", "Prompt tokens of ended requests.", {}};
inline constexpr CounterFamily<0> kCachedPromptTokens = {
    "baton_prompt_tokens_cached_total",
    "Prompt tokens of ended requests whose KV was kept from the turn before.",
    {}};
inline constexpr CounterFamily<0> kGenerationTokens = {
    "baton_generation_tokens_total", "Tokens generated by ended requests.", {}};
inline constexpr CounterFamily<1> kStreamIncomplete = {
    "baton_stream_incomplete_total",
    "Streams that ended without their terminal message, by reason.",
    {"reason"}};
inline constexpr CounterFamily<1> kRequestRetries = {
    "baton_request_retries_total", "Attempts repeated on another worker, by reason.", {"reason"}};
inline constexpr CounterFamily<2> kResumes = {
    "baton_resume_total",
    "Answers that had begun when their worker was lost: where the prompt's KV came from for the "
    "next "
    "one (reprefill, retained_kv), and whether it took them up (resumed, failed).",
    {"source", "outcome"}};

// --- KV
// ---------------------------------------------------------------------------------------------
inline constexpr CounterFamily<2> kKvWireBytes = {
    "baton_kv_wire_bytes_total",
    "Bytes of KV shipped: payload, segment headers and manifest.",
    {"format", "transport"}};
inline constexpr CounterFamily<0> kKvLogicalBytes = {
    "baton_kv_logical_bytes_total", "Size of the same KV at 16 bits per element, unpadded.", {}};
inline constexpr GaugeFamily<1> kKvPages = {
    "baton_kv_pages", "Pages of the pool by state: free, reserved, used.", {"state"}};
inline constexpr CounterFamily<1> kSessionTurns = {
    "baton_session_turns_total",
    "Turns of conversations, by whether they went on from `kept` KV or started `fresh`.",
    {"kv"}};
inline constexpr GaugeFamily<0> kKvKeptSessions = {
    "baton_kv_kept_sessions", "Conversations whose KV is kept for their next turn.", {}};
inline constexpr GaugeFamily<0> kKvKeptBytes = {
    "baton_kv_kept_bytes", "Pool memory of KV kept for the next turn; it makes room.", {}};
inline constexpr GaugeFamily<2> kKvFormatPoolBytes = {
    "baton_kv_format_pool_bytes",
    "Memory of KV formats besides dense by state: free, used.",
    {"format", "state"}};
inline constexpr GaugeFamily<0> kKvReservedPages = {
    "baton_kv_reserved_pages", "Pages owned by reservations that are not yet committed.", {}};
inline constexpr GaugeFamily<0> kKvOrphanedBytes = {
    "baton_kv_orphaned_bytes",
    "Pool memory of ended requests that a step or a transfer still holds.",
    {}};
inline constexpr GaugeFamily<0> kKvPageTokens = {
    "baton_kv_page_tokens", "Tokens that one page holds.", {}};
inline constexpr GaugeFamily<0> kKvLeasesActive = {
    "baton_kv_leases_active", "Reservations granted and not yet committed.", {}};
inline constexpr CounterFamily<1> kKvLeasesExpired = {
    "baton_kv_leases_expired_total", "Leases that ran out, by side.", {"side"}};
inline constexpr CounterFamily<0> kKvChecksumFailures = {
    "baton_kv_chunk_checksum_failures_total", "Segments whose checksum did not match.", {}};
inline constexpr GaugeFamily<1> kKvTransportInfo = {
    "baton_kv_transport_info", "1 for a transport that carries KV of this worker.", {"transport"}};

inline constexpr GaugeFamily<0> kKvRetainedBytes = {
    "baton_kv_retained_bytes", "Host memory of encoded KV that prefill retains.", {}};
inline constexpr GaugeFamily<0> kKvRetainedEntries = {
    "baton_kv_retained_entries", "Requests whose encoded KV prefill retains.", {}};
inline constexpr CounterFamily<1> kKvRetainedLookups = {
    "baton_kv_retained_lookups_total",
    "Requests that were to be served from retained KV: `hit` shipped it, `miss` prefilled again.",
    {"outcome"}};
inline constexpr CounterFamily<1> kKvRetainedEvictions = {
    "baton_kv_retained_evictions_total",
    "Retained KV dropped before its request ended: `acknowledged` and `unacknowledged` for room, "
    "`no_room` while it was being filled, `expired` at the end of its lease.",
    {"reason"}};

inline constexpr GaugeFamily<0> kKvLandingBytes = {
    "baton_kv_landing_bytes", "Memory that connected peers may put KV into (ucx by RDMA).", {}};
inline constexpr GaugeFamily<1> kKvLandingSlots = {
    "baton_kv_landing_slots",
    "Slots that transfers over ucx hold: granted, and of these quarantined until the sender of an "
    "ended transfer confirms that nothing is on its way.",
    {"state"}};

// --- The process
// --------------------------------------------------------------------------------------
inline constexpr GaugeFamily<0> kReady = {
    "baton_ready", "1 while the service accepts work and makes progress.", {}};
inline constexpr GaugeFamily<1> kBuildInfo = {
    "baton_build_info", "Always 1; the version is a label.", {"version"}};
inline constexpr CounterFamily<0> kTraceSpansDropped = {
    "baton_trace_spans_dropped_total",
    "Spans that --trace_file lost, because too many waited for the disk or it refused them.",
    {}};
// Under the name that Prometheus' own client libraries give it.
inline constexpr GaugeFamily<0> kProcessStartTime = {
    "process_start_time_seconds", "Start of the process, in seconds since 1970.", {}};
inline constexpr GaugeFamily<2> kWorkers = {
    "baton_workers",
    "Workers that the router knows: ready, draining, or unavailable (not connected, no fresh "
    "report, or no progress).",
    {"worker_role", "state"}};

}  // namespace baton::metrics
