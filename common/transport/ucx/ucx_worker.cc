#include "common/transport/ucx/ucx_worker.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/config/host_port.h"

namespace baton::transport::ucx {
namespace {

// How often UCX looks whether an idle peer still lives.
constexpr char kKeepaliveInterval[] = "5s";

absl::Status Configure(ucp_config_t* config) {
  if (std::getenv("UCX_KEEPALIVE_INTERVAL") != nullptr) {
    return absl::OkStatus();
  }
  return FromUcs(ucp_config_modify(config, "KEEPALIVE_INTERVAL", kKeepaliveInterval),
                 "setting KEEPALIVE_INTERVAL");
}

}  // namespace

absl::Status FromUcs(ucs_status_t status, std::string_view what) {
  const auto text = absl::StrCat("UCX: ", std::string(what), ": ", ucs_status_string(status));
  switch (status) {
    case UCS_OK:
      return absl::OkStatus();
    case UCS_ERR_CANCELED:
      return absl::CancelledError(text);
    case UCS_ERR_REJECTED:
      return absl::PermissionDeniedError(text);
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_IO_ERROR:
      return absl::UnavailableError(text);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

ucs_sock_addr_t SockAddr(const sockaddr_storage& address) {
  const size_t size = address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return {.addr = reinterpret_cast<const sockaddr*>(&address),
          .addrlen = static_cast<socklen_t>(size)};
}

absl::StatusOr<sockaddr_storage> Resolve(const std::string& address, bool allow_port_zero) {
  BATON_ASSIGN_OR_RETURN(const config::HostPort parsed,
                         config::ParseHostPort(address, allow_port_zero));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(parsed.host.c_str(), std::to_string(parsed.port).c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(
        absl::StrCat("no address for ", address, ": ", gai_strerror(error)));
  }
  sockaddr_storage result{};
  std::memcpy(&result, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return result;
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Make(Handlers handlers) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker(std::move(handlers)));
  BATON_RETURN_IF_ERROR(worker->Bring());
  return worker;
}

absl::Status UcxWorker::Bring() {
  ucp_config_t* config = nullptr;
  BATON_RETURN_IF_ERROR(FromUcs(ucp_config_read(nullptr, nullptr, &config), "its configuration"));
  const absl::Status configured = Configure(config);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  params.name = "baton";
  const ucs_status_t made = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  BATON_RETURN_IF_ERROR(FromUcs(made, "making a context"));
  BATON_RETURN_IF_ERROR(configured);
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  BATON_RETURN_IF_ERROR(
      FromUcs(ucp_worker_create(context_, &worker_params, &worker_), "making a worker"));
  BATON_RETURN_IF_ERROR(FromUcs(ucp_worker_get_efd(worker_, &fd_), "its event descriptor"));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = &UcxWorker::OnMessage;
  handler.arg = this;
  return FromUcs(ucp_worker_set_am_recv_handler(worker_, &handler), "setting a message handler");
}

UcxWorker::~UcxWorker() {
  StopListening();
  if (worker_ != nullptr) {
    ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) {
    ucp_cleanup(context_);
  }
}

absl::StatusOr<uint16_t> UcxWorker::Listen(const std::string& address) {
  BATON_ASSIGN_OR_RETURN(const sockaddr_storage local, Resolve(address, /*allow_port_zero=*/true));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = SockAddr(local);
  params.conn_handler = {.cb = &UcxWorker::OnConnection, .arg = this};
  BATON_RETURN_IF_ERROR(FromUcs(ucp_listener_create(worker_, &params, &listener_),
                                absl::StrCat("listening on ", address)));
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  BATON_RETURN_IF_ERROR(
      FromUcs(ucp_listener_query(listener_, &attributes), "its listening address"));
  // Both families have the port at the same place.
  sockaddr_in bound{};
  std::memcpy(&bound, &attributes.sockaddr, sizeof(bound));
  return ntohs(bound.sin_port);
}

void UcxWorker::StopListening() {
  if (listener_ != nullptr) {
    ucp_listener_destroy(std::exchange(listener_, nullptr));
  }
}

void UcxWorker::Reject(ucp_conn_request_h request) {
  if (listener_ != nullptr) {
    ucp_listener_reject(listener_, request);
  }
}

bool UcxWorker::Progress() {
  ++rounds_;
  return ucp_worker_progress(worker_) != 0;
}

void UcxWorker::Wait(int wake_fd, absl::Time deadline) {
  if (ucp_worker_arm(worker_) != UCS_OK) {
    return;  // something happened meanwhile
  }
  const absl::Duration wait =
      std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Duration(absl::Hours(1)));
  pollfd files[2] = {{.fd = fd_, .events = POLLIN, .revents = 0},
                     {.fd = wake_fd, .events = POLLIN, .revents = 0}};
  poll(files,
       2,
       static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)))));
}

ucs_status_t UcxWorker::OnMessage(void* self,
                                  const void* /*header*/,
                                  size_t header_bytes,
                                  void* data,
                                  size_t bytes,
                                  const ucp_am_recv_param_t* param) {
  const bool whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 && header_bytes == 0;
  if (whole && (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) {
    static_cast<UcxWorker*>(self)->handlers_.message(
        param->reply_ep, std::span(static_cast<const std::byte*>(data), bytes));
  }
  return UCS_OK;
}

void UcxWorker::OnConnection(ucp_conn_request_h request, void* self) {
  auto& worker = *static_cast<UcxWorker*>(self);
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  if (ucp_conn_request_query(request, &attributes) != UCS_OK) {
    worker.Reject(request);
    return;
  }
  worker.handlers_.connection(request, attributes.client_address);
}

}  // namespace baton::transport::ucx
