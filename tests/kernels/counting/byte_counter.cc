// Where instrumented code reports its accesses. This file itself is not instrumented.
#include <pthread.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/kernels/counting/counting_ops.h"

namespace baton::kernels {
namespace {

constexpr uintptr_t kPageBytes = 4096;

// Two bits for every byte of a page of memory.
struct TouchedPage {
  uintptr_t number = 0;
  std::array<uint64_t, kPageBytes / 64> read{};
  std::array<uint64_t, kPageBytes / 64> written{};
};

// Open addressing by page number; grows by doubling.
class ByteCounter {
 public:
  explicit ByteCounter(std::span<const std::byte> within)
      : begin_(reinterpret_cast<uintptr_t>(within.data())),
        end_(within.empty() ? UINTPTR_MAX : begin_ + within.size()),
        slots_(1 << 12) {
    pthread_attr_t attributes;
    void* stack = nullptr;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0 ||
        pthread_attr_getstack(&attributes, &stack, &size) != 0) {
      std::abort();
    }
    pthread_attr_destroy(&attributes);
    stack_begin_ = reinterpret_cast<uintptr_t>(stack);
    stack_end_ = stack_begin_ + size;
  }

  void Touch(uintptr_t address, size_t size, bool write) {
    if (address >= stack_begin_ && address < stack_end_) {
      return;
    }
    for (uintptr_t byte = address; byte < address + size; ++byte) {
      if (byte < begin_ || byte >= end_) {
        continue;
      }
      TouchedPage& page = Page(byte / kPageBytes);
      const uint64_t bit = uint64_t{1} << (byte % 64);
      const size_t word = byte % kPageBytes / 64;
      if (write) {
        count_.written += (page.written[word] & bit) == 0 ? 1 : 0;
        page.written[word] |= bit;
      } else if (((page.read[word] | page.written[word]) & bit) == 0) {
        ++count_.read;
        page.read[word] |= bit;
      }
    }
  }
  const ByteCount& count() const { return count_; }

 private:
  TouchedPage& Page(uintptr_t number) {
    if (last_ != nullptr && last_->number == number) {
      return *last_;
    }
    size_t slot = Slot(number);
    if (slots_[slot] == nullptr) {
      if (++used_ * 2 > slots_.size()) {
        Grow();
        slot = Slot(number);
      }
      slots_[slot] = std::make_unique<TouchedPage>();
      slots_[slot]->number = number;
    }
    last_ = slots_[slot].get();
    return *last_;
  }
  size_t Slot(uintptr_t number) const {
    size_t slot = number * 0x9e3779b97f4a7c15u >> 32 & (slots_.size() - 1);
    while (slots_[slot] != nullptr && slots_[slot]->number != number) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }
  void Grow() {
    std::vector<std::unique_ptr<TouchedPage>> old(2 * slots_.size());
    old.swap(slots_);
    for (std::unique_ptr<TouchedPage>& page : old) {
      if (page != nullptr) {
        const size_t slot = Slot(page->number);
        slots_[slot] = std::move(page);
      }
    }
  }

  const uintptr_t begin_;
  const uintptr_t end_;
  uintptr_t stack_begin_ = 0;
  uintptr_t stack_end_ = 0;
  std::vector<std::unique_ptr<TouchedPage>> slots_;
  size_t used_ = 0;
  TouchedPage* last_ = nullptr;
  ByteCount count_;
};

thread_local ByteCounter* counter = nullptr;

void Touch(const volatile void* address, size_t size, bool write) {
  if (counter != nullptr) {
    ByteCounter& active = *counter;
    counter = nullptr;  // what the counter itself calls is not counted
    active.Touch(reinterpret_cast<uintptr_t>(address), size, write);
    counter = &active;
  }
}

}  // namespace

ByteCount CountBytes(const std::function<void()>& work, std::span<const std::byte> within) {
  ByteCounter bytes(within);
  counter = &bytes;
  work();
  counter = nullptr;
  return bytes.count();
}

}  // namespace baton::kernels

// The names that the compiler calls.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
#define BATON_ACCESS(bytes)                                                              \
  void __tsan_read##bytes(void* p) { baton::kernels::Touch(p, bytes, false); }           \
  void __tsan_write##bytes(void* p) { baton::kernels::Touch(p, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* p) { baton::kernels::Touch(p, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* p) { baton::kernels::Touch(p, bytes, true); }

extern "C" {
BATON_ACCESS(1)
BATON_ACCESS(2)
BATON_ACCESS(4)
BATON_ACCESS(8)
BATON_ACCESS(16)
void __tsan_read_range(void* p, size_t size) { baton::kernels::Touch(p, size, false); }
void __tsan_write_range(void* p, size_t size) { baton::kernels::Touch(p, size, true); }
void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void** /*object*/) {}
void __tsan_vptr_update(void** /*object*/, void* /*value*/) {}
// Guards of local statics, and counters: what they protect is not KV.
uint8_t __tsan_atomic8_load(const volatile uint8_t* p, int /*order*/) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
int64_t __tsan_atomic64_fetch_add(volatile int64_t* p, int64_t value, int /*order*/) {
  return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
// Copies of the C library, which is not instrumented: the linker sends calls here.
void* __real_memcpy(void* to, const void* from, size_t size);
void* __real_memset(void* to, int value, size_t size);
void* __wrap_memcpy(void* to, const void* from, size_t size) {
  baton::kernels::Touch(from, size, false);
  baton::kernels::Touch(to, size, true);
  return __real_memcpy(to, from, size);
}
void* __wrap_memset(void* to, int value, size_t size) {
  baton::kernels::Touch(to, size, true);
  return __real_memset(to, value, size);
}
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
#undef BATON_ACCESS
