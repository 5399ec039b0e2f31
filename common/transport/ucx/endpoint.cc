#include "common/transport/ucx/endpoint.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/ucx/carrier.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport::ucx {
namespace {

// Calls of Progress in which UCX ends the connections of a closed endpoint: a callback for each
// stage, flush and destruction, and some to spare.
constexpr uint64_t kClosingRounds = 32;

ucp_request_param_t ParamsOf(ucp_send_nbx_callback_t callback, void* user_data) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = callback;
  params.user_data = user_data;
  return params;
}

}  // namespace

struct Endpoint::Operation {
  Endpoint* endpoint = nullptr;
  std::string message{};  // the bytes of a Send
  Done done{};
};

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Connect(UcxWorker& worker,
                                                            const sockaddr_storage& peer) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(worker));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = SockAddr(peer);
  BATON_RETURN_IF_ERROR(endpoint->Create(params));
  return endpoint;
}

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Accept(UcxWorker& worker,
                                                           ucp_conn_request_h request) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(worker));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  BATON_RETURN_IF_ERROR(endpoint->Create(params));
  return endpoint;
}

absl::Status Endpoint::Create(ucp_ep_params_t params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &Endpoint::OnError, .arg = this};
  ucp_ep_h handle = nullptr;
  BATON_RETURN_IF_ERROR(
      FromUcs(ucp_ep_create(worker_.handle(), &params, &handle), "making an endpoint"));
  handle_ = handle;
  return absl::OkStatus();
}

Endpoint::~Endpoint() {
  // Nothing may call back any more.
  Close();
  while (!closed()) {
    worker_.Progress();
  }
}

void Endpoint::Send(const Message& message, Done done) {
  auto operation = std::make_unique<Operation>();
  operation->message = EncodeMessage(message);
  operation->done = std::move(done);
  ucp_request_param_t params = ParamsOf(&Endpoint::OnDone, operation.get());
  params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  const ucs_status_ptr_t request = handle_ == nullptr ? UCS_STATUS_PTR(UCS_ERR_CANCELED)
                                                      : ucp_am_send_nbx(handle_,
                                                                        kMessageId,
                                                                        nullptr,
                                                                        0,
                                                                        operation->message.data(),
                                                                        operation->message.size(),
                                                                        &params);
  Track(request, std::move(operation));
}

void Endpoint::Put(std::span<const std::byte> source,
                   uint64_t remote_address,
                   ucp_rkey_h rkey,
                   Done done) {
  auto operation = std::make_unique<Operation>();
  operation->done = std::move(done);
  const ucp_request_param_t params = ParamsOf(&Endpoint::OnDone, operation.get());
  const ucs_status_ptr_t request =
      handle_ == nullptr
          ? UCS_STATUS_PTR(UCS_ERR_CANCELED)
          : ucp_put_nbx(handle_, source.data(), source.size(), remote_address, rkey, &params);
  Track(request, std::move(operation));
}

void Endpoint::Flush(Done done) {
  auto operation = std::make_unique<Operation>();
  operation->done = std::move(done);
  const ucp_request_param_t params = ParamsOf(&Endpoint::OnDone, operation.get());
  const ucs_status_ptr_t request =
      handle_ == nullptr ? UCS_STATUS_PTR(UCS_ERR_CANCELED) : ucp_ep_flush_nbx(handle_, &params);
  Track(request, std::move(operation));
}

void Endpoint::Track(ucs_status_ptr_t request, std::unique_ptr<Operation> operation) {
  operation->endpoint = this;
  ++open_operations_;
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(operation.release());  // OnDone takes it back
  } else {
    End(*operation, UCS_PTR_STATUS(request));
  }
}

void Endpoint::End(const Operation& operation, ucs_status_t status) {
  --open_operations_;
  last_progress_ = absl::Now();
  if (status != UCS_OK && status_.ok()) {
    status_ = FromUcs(status, "sending to a peer");
  }
  if (operation.done) {
    operation.done(FromUcs(status, "sending to a peer"));
  }
}

void Endpoint::OnDone(void* request, ucs_status_t status, void* operation) {
  const std::unique_ptr<Operation> ended(static_cast<Operation*>(operation));
  ucp_request_free(request);
  ended->endpoint->End(*ended, status);
}

void Endpoint::OnError(void* self, ucp_ep_h /*handle*/, ucs_status_t status) {
  auto& endpoint = *static_cast<Endpoint*>(self);
  if (endpoint.status_.ok()) {
    endpoint.status_ = FromUcs(status, "the connection to a peer");
  }
}

void Endpoint::Close() {
  if (handle_ == nullptr) {
    return;
  }
  if (status_.ok()) {
    status_ = absl::CancelledError("the connection was closed");
  }
  ucp_request_param_t params = ParamsOf(&Endpoint::OnClosed, this);
  params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  closing_ = true;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(handle_, nullptr), &params);
  if (!UCS_PTR_IS_PTR(request)) {
    closing_ = false;
    close_round_ = worker_.rounds();
  }
}

bool Endpoint::closed() const {
  return handle_ == nullptr && !closing_ && open_operations_ == 0 &&
         worker_.rounds() >= close_round_ + kClosingRounds;
}

void Endpoint::OnClosed(void* request, ucs_status_t /*status*/, void* self) {
  ucp_request_free(request);
  auto& endpoint = *static_cast<Endpoint*>(self);
  endpoint.closing_ = false;
  endpoint.close_round_ = endpoint.worker_.rounds();
}

std::string Endpoint::carrier() const {
  char* text = nullptr;
  size_t size = 0;
  FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr || handle_ == nullptr) {
    if (stream != nullptr) {
      std::fclose(stream);
      std::free(text);
    }
    return CarrierOf({});
  }
  ucp_ep_print_info(handle_, stream);
  std::fclose(stream);
  std::string carrier = CarrierOf({text, size});
  std::free(text);
  return carrier;
}

}  // namespace baton::transport::ucx
