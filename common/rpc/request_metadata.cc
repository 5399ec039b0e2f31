#include "common/rpc/request_metadata.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "common/trace/trace_context.h"

namespace baton::rpc {
namespace {

std::string Value(const grpc::ServerContextBase& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(key);
  if (it == metadata.end() || it->second.size() > kMaxMetadataValueBytes) {
    return "";
  }
  std::string value(it->second.data(), it->second.size());
  const bool printable =
      std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return printable ? value : "";
}

void Add(const char* key, const std::string& value, grpc::ClientContext* context) {
  if (!value.empty()) {
    context->AddMetadata(key, value);
  }
}

}  // namespace

RequestMetadata ReadRequestMetadata(const grpc::ServerContextBase& context) {
  RequestMetadata metadata = {.request_id = Value(context, kRequestIdKey),
                              .traceparent = Value(context, kTraceparentKey),
                              .tracestate = Value(context, kTracestateKey)};
  if (!trace::ParseTraceparent(metadata.traceparent).has_value()) {
    metadata.traceparent.clear();
    metadata.tracestate.clear();  // it says nothing without the other
  }
  return metadata;
}

void AddRequestMetadata(const RequestMetadata& metadata, grpc::ClientContext* context) {
  Add(kRequestIdKey, metadata.request_id, context);
  Add(kTraceparentKey, metadata.traceparent, context);
  Add(kTracestateKey, metadata.tracestate, context);
}

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

void SetDeadline(absl::Time deadline, grpc::ClientContext* context) {
  if (deadline != absl::InfiniteFuture()) {
    context->set_deadline(absl::ToChronoTime(deadline));
  }
}

}  // namespace baton::rpc
