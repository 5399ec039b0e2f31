#include "common/base/xxh3.h"

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "common/base/check.h"

namespace baton {

uint64_t Xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Xxh3Stream::State {
  XXH3_state_t* xxh3 = nullptr;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  state_->xxh3 = XXH3_createState();
  if (state_->xxh3 == nullptr) {
    throw std::bad_alloc();
  }
  BATON_CHECK(XXH3_64bits_reset(state_->xxh3) == XXH_OK);
}

Xxh3Stream::~Xxh3Stream() { XXH3_freeState(state_->xxh3); }

void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  BATON_CHECK(XXH3_64bits_update(state_->xxh3, bytes.data(), bytes.size()) == XXH_OK);
}

uint64_t Xxh3Stream::value() const { return XXH3_64bits_digest(state_->xxh3); }

}  // namespace baton
