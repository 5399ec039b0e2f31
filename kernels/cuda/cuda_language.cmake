# The CUDA language for the targets below, and the flags of their code for the device.
#
# Machine code for sm_90a (Hopper) alone unless told otherwise: the kernels are made for its copy engine, and
# a bundle stays small. Devices from compute capability 8.0 on run what is compiled for them
# (kernels/cuda/device_code.h).
# Contraction is off as in the rest of the tree: codes and page ids must be the CPU's bit by bit, so a
# fused multiply-add stands where it is meant.
set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(BATON_CUDA_ARCHITECTURES 90a-real CACHE STRING
    "What device code is compiled for, as CMAKE_CUDA_ARCHITECTURES says it")
set(CMAKE_CUDA_ARCHITECTURES ${BATON_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
# CMake 3.25 does not know that this nvcc has C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
if(BATON_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
# The headers of kv_format are constexpr functions that the device calls too. 2810: nvcc takes the
# assignment of a class that is nodiscard for a call whose result is dropped.
set(baton_cuda_flags --expt-relaxed-constexpr --fmad=false -diag-suppress=2810
    -Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off)
if(BATON_WERROR)
  list(APPEND baton_cuda_flags --Werror all-warnings)
endif()
target_compile_options(baton_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${baton_cuda_flags}>")
