// How a router is set up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/rpc/tls.h"
#include "common/scheduling/central_queue.h"
#include "common/trace/span_file.h"

namespace baton::router {

struct RouterOptions {
  std::string model;       // HuggingFace directory: tokenizer and configuration are read
  std::string model_name;  // empty: the directory's name
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen;  // host:port of /metrics; empty: none
  // host:port[,host:port...] or dns:///name:port. No prefill: decode workers of role both.
  std::string prefill;
  std::string decode;
  uint32_t default_max_tokens = 512;
  scheduling::QueueLimits queue = {
      .max_requests = 1024, .max_tokens = 4'000'000, .max_bytes = int64_t{256} << 20};
  int max_attempts = 3;
  size_t max_stream_buffer_bytes = size_t{256} << 10;
  // How long a request waits while nobody can serve it.
  absl::Duration endpoint_wait = absl::Seconds(5);
  int tokenizer_threads = 1;
  bool vllm_metrics = false;
  trace::SpanFileOptions trace;  // path empty: no spans
  rpc::TlsOptions tls;
};

}  // namespace baton::router
