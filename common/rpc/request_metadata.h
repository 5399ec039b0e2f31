// Who a call belongs to: request id and trace context in gRPC metadata (serving.md 7.4).
#pragma once

#include <string>

#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"

namespace baton::rpc {

inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";
inline constexpr char kTracestateKey[] = "tracestate";

// Longest value taken over; a longer one is ignored.
inline constexpr size_t kMaxMetadataValueBytes = 512;

// Values a caller sent; empty where it sent none, or one that is too long or not printable ASCII,
// and for a traceparent also where W3C's specification calls it invalid.
struct RequestMetadata {
  std::string request_id = {};
  std::string traceparent = {};
  std::string tracestate = {};
};

// Reads what the caller of `context` sent. Outside bytes: what is not sane is left empty.
RequestMetadata ReadRequestMetadata(const grpc::ServerContextBase& context);

// Sends `metadata` with a call, fields that are empty left out.
void AddRequestMetadata(const RequestMetadata& metadata, grpc::ClientContext* context);

// Deadline of a server call; InfiniteFuture without one.
absl::Time DeadlineOf(const grpc::ServerContextBase& context);
// Sets the deadline of a client call; InfiniteFuture sets none.
void SetDeadline(absl::Time deadline, grpc::ClientContext* context);

}  // namespace baton::rpc
