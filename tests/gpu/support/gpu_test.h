// What tests of the CUDA back end share: a queue of the device, and arrays on it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_memory.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels::cuda {

// Values of a vector on the device. The test fails where the device lacks memory.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::span<const T> values) : size_(values.size()) {
    Allocate();
    Set(values);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(std::span<const T>(values)) {}
  // `count` elements whose bytes are all 0xff (NaN as bf16 and fp32): what an op has to write.
  static DeviceArray Poisoned(size_t count) {
    DeviceArray array(count);
    const std::vector<uint8_t> poison(count * sizeof(T), 0xff);
    EXPECT_TRUE(array.memory_.Upload(poison.data(), poison.size()).ok());
    return array;
  }

  T* data() const { return memory_.as<T>(); }
  size_t size() const { return size_; }
  void Set(std::span<const T> values) const {
    const auto* const bytes = static_cast<const void*>(values.data());
    EXPECT_TRUE(memory_.Upload(bytes, values.size_bytes()).ok());
  }
  std::vector<T> Get() const {
    std::vector<T> values(size_);
    EXPECT_TRUE(memory_.Download(values.data(), size_ * sizeof(T)).ok());
    return values;
  }

 private:
  explicit DeviceArray(size_t count) : size_(count) { Allocate(); }
  void Allocate() {
    absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(size_ * sizeof(T));
    EXPECT_TRUE(memory.ok()) << memory.status();
    if (memory.ok()) {
      memory_ = *std::move(memory);
    }
  }

  DeviceMemory memory_;
  size_t size_;
};

// bf16 activations on the device, given and read back as fp32.
DeviceArray<uint16_t> Activations(std::span<const float> values);
std::vector<float> Widened(const DeviceArray<uint16_t>& values);

// Skips, visibly, on a machine without a device.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override;
  // Every op has to leave the queue's counters at zero.
  void TearDown() override;

  const OpTable& ops() const { return *ops_; }
  const ExecContext& context() const { return context_; }
  DeviceQueue& queue() const { return *queue_; }
  // Ends the test's wait for the device; fails on a kernel's error.
  void Wait() const;

 private:
  const OpTable* ops_ = nullptr;
  std::unique_ptr<DeviceQueue> queue_;
  ExecContext context_;
};

}  // namespace baton::kernels::cuda
