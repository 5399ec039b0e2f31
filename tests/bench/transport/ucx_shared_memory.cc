#include "tests/bench/transport/ucx_shared_memory.h"

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport {
namespace {

using ucx::FromUcs;

// A context with one worker.
class End {
 public:
  End() = default;
  ~End() {
    if (worker_ != nullptr) {
      ucp_worker_destroy(worker_);
    }
    if (context_ != nullptr) {
      ucp_cleanup(context_);
    }
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  absl::Status Create() {
    ucp_config_t* config = nullptr;
    BATON_RETURN_IF_ERROR(FromUcs(ucp_config_read(nullptr, nullptr, &config), "its configuration"));
    absl::Status status = FromUcs(ucp_config_modify(config, "TLS", "shm"), "setting TLS");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA;
    status.Update(FromUcs(ucp_init(&params, config, &context_), "making a context"));
    ucp_config_release(config);
    BATON_RETURN_IF_ERROR(status);
    ucp_worker_params_t worker_params{};
    return FromUcs(ucp_worker_create(context_, &worker_params, &worker_), "making a worker");
  }

  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
};

class Puts final : public UcxSharedMemory {
 public:
  explicit Puts(std::span<std::byte> target) : target_(target) {}
  ~Puts() override {
    if (key_ != nullptr) {
      ucp_rkey_destroy(key_);
    }
    if (endpoint_ != nullptr) {
      const ucp_request_param_t params{};
      Await(ucp_ep_close_nbx(endpoint_, &params), "closing").IgnoreError();
    }
    if (mapped_ != nullptr) {
      ucp_mem_unmap(receiver_.context(), mapped_);
    }
  }
  Puts(const Puts&) = delete;
  Puts& operator=(const Puts&) = delete;

  absl::Status Connect() {
    BATON_RETURN_IF_ERROR(sender_.Create());
    BATON_RETURN_IF_ERROR(receiver_.Create());
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    BATON_RETURN_IF_ERROR(
        FromUcs(ucp_worker_get_address(receiver_.worker(), &address, &bytes), "its address"));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = address;
    const ucs_status_t made = ucp_ep_create(sender_.worker(), &params, &endpoint_);
    ucp_worker_release_address(receiver_.worker(), address);
    BATON_RETURN_IF_ERROR(FromUcs(made, "making an endpoint"));
    return Map();
  }

  absl::Status Put(std::span<const std::byte> source, size_t offset) override {
    const ucp_request_param_t params{};
    const ucs_status_ptr_t request =
        ucp_put_nbx(endpoint_,
                    source.data(),
                    source.size(),
                    reinterpret_cast<uint64_t>(target_.data() + offset),
                    key_,
                    &params);
    if (UCS_PTR_IS_PTR(request)) {
      ucp_request_free(request);  // Flush waits for it
      return absl::OkStatus();
    }
    return FromUcs(UCS_PTR_STATUS(request), "a put");
  }

  absl::Status Flush() override {
    const ucp_request_param_t params{};
    return Await(ucp_ep_flush_nbx(endpoint_, &params), "flushing");
  }

 private:
  absl::Status Map() {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = target_.data();
    params.length = target_.size();
    BATON_RETURN_IF_ERROR(
        FromUcs(ucp_mem_map(receiver_.context(), &params, &mapped_), "mapping memory"));
    void* packed = nullptr;
    size_t bytes = 0;
    BATON_RETURN_IF_ERROR(
        FromUcs(ucp_rkey_pack(receiver_.context(), mapped_, &packed, &bytes), "packing a key"));
    const ucs_status_t unpacked = ucp_ep_rkey_unpack(endpoint_, packed, &key_);
    ucp_rkey_buffer_release(packed);
    return FromUcs(unpacked, "unpacking a key");
  }

  absl::Status Await(ucs_status_ptr_t request, std::string_view what) {
    if (!UCS_PTR_IS_PTR(request)) {
      return FromUcs(UCS_PTR_STATUS(request), what);
    }
    ucs_status_t status = UCS_INPROGRESS;
    while (status == UCS_INPROGRESS) {
      ucp_worker_progress(sender_.worker());
      ucp_worker_progress(receiver_.worker());
      status = ucp_request_check_status(request);
    }
    ucp_request_free(request);
    return FromUcs(status, what);
  }

  const std::span<std::byte> target_;
  End sender_;
  End receiver_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_mem_h mapped_ = nullptr;
  ucp_rkey_h key_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxSharedMemory>> UcxSharedMemory::Create(
    std::span<std::byte> target) {
  auto puts = std::make_unique<Puts>(target);
  BATON_RETURN_IF_ERROR(puts->Connect());
  return puts;
}

}  // namespace baton::transport
