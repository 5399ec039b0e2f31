#include "common/rpc/status_mapping.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/time/time.h"

#include "common/rpc/status_details.h"
#include "proto/google/rpc/status.pb.h"

namespace baton::rpc {
namespace {

constexpr size_t kMaxMessageBytes = 1024;
constexpr size_t kMaxDetailBytes = 4096;
constexpr int kMaxDetails = 16;
constexpr std::string_view kTypePrefix = "type.googleapis.com/google.rpc.";
constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";

// At most kMaxMessageBytes of `message`, cut before a UTF-8 sequence, never inside one.
std::string CutMessage(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) {
    return std::string(message);
  }
  size_t size = kMaxMessageBytes - 3;
  while (size > 0 && (static_cast<unsigned char>(message[size]) & 0xC0U) == 0x80U) {
    --size;
  }
  return std::string(message.substr(0, size)) + "...";
}

bool IsOurDetail(std::string_view type_url) { return type_url.starts_with(kTypePrefix); }

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  google::rpc::Status detailed;
  detailed.set_code(static_cast<int32_t>(status.code()));
  std::string message = CutMessage(status.message());
  detailed.set_message(message);
  size_t detail_bytes = 0;
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& payload) {
    detail_bytes += payload.size();
    if (!IsOurDetail({type_url.data(), type_url.size()}) || detail_bytes > kMaxDetailBytes) {
      return;
    }
    auto* any = detailed.add_details();
    any->set_type_url(std::string(type_url));
    any->set_value(std::string(payload));
  });
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (detailed.details().empty()) {
    return grpc::Status(code, std::move(message));
  }
  return grpc::Status(code, std::move(message), detailed.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  const int code = static_cast<int>(status.error_code());
  const bool canonical = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status result(canonical ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      status.error_message());
  google::rpc::Status detailed;
  if (status.error_details().size() > 2 * kMaxDetailBytes ||
      !detailed.ParseFromString(status.error_details())) {
    return result;
  }
  for (int i = 0; i < detailed.details_size() && i < kMaxDetails; ++i) {
    const auto& detail = detailed.details(i);
    if (IsOurDetail(detail.type_url())) {
      result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return result;
}

grpc::Status FinishStatus(grpc::ServerContextBase* context, const absl::Status& status) {
  if (const auto retry_after = RetryAfter(status); retry_after.has_value() && context != nullptr) {
    context->AddTrailingMetadata(kPushbackTrailer,
                                 std::to_string(absl::ToInt64Milliseconds(*retry_after)));
  }
  return ToGrpcStatus(status);
}

const char* CodeName(absl::StatusCode code) {
  static constexpr std::array kNames = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "DEADLINE_EXCEEDED",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS",
                                        "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "UNKNOWN";
}

}  // namespace baton::rpc
