// Ids of the requests that run, so that a duplicate is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/rpc/status_details.h"

namespace baton::router {

// Thread-safe.
class RunningRequests {
 public:
  // Keeps an id taken while it lives. Thread-compatible.
  class Claim {
   public:
    Claim() = default;
    Claim(RunningRequests* owner, std::string id) : owner_(owner), id_(std::move(id)) {}
    Claim(Claim&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), id_(std::move(other.id_)) {}
    Claim& operator=(Claim&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(id_, other.id_);
      return *this;
    }
    ~Claim() { Release(); }
    void Release() {
      if (owner_ != nullptr) {
        std::exchange(owner_, nullptr)->Remove(id_);
      }
    }

   private:
    RunningRequests* owner_ = nullptr;
    std::string id_;
  };

  // kAlreadyExists: a request of this id runs. This object must outlive the claim.
  absl::StatusOr<Claim> Add(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    if (!ids_.insert(id).second) {
      return rpc::WithReason(
          absl::AlreadyExistsError(absl::StrCat("request_id `", id, "` is running already")),
          rpc::reason::kDuplicateRequest,
          {{"request_id", id}});
    }
    return Claim(this, id);
  }

  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return ids_.size();
  }

 private:
  void Remove(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    ids_.erase(id);
  }

  mutable absl::Mutex mutex_;
  std::unordered_set<std::string> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router
