// A CUDA driver library without a device, for machines that have none: it loads any module and launches nothing.
//
// What a real driver would refuse is refused here: grids, blocks, clusters and shared memory beyond the limits of
// compute capability 9.0, and dynamic shared memory over 48 KiB that was not asked for. Pointers of the host pass
// for the device's. `driver.py` builds it as libcuda.so.1.

#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
  MAX_SHARED = 232448,         // bytes of shared memory of a block, when asked for
  MAX_SHARED_BY_DEFAULT = 49152,
  MAX_THREADS = 1024,
  MAX_GRID_YZ = 65535,
  MAX_CLUSTER = 16,            // blocks, where a kernel allows more than the portable 8
};

typedef struct {
  int dynamic_shared; // what cuFuncSetAttribute has allowed
} Function;

typedef struct {
  int64_t launches;
  unsigned grid[3], block[3], shared;
  const void *function;
} Launched;

enum { REMEMBERED = 4096 };
static Launched last, all[REMEMBERED];
static const char *refusal = "";

Launched null_last_launch(void) { return last; }

Launched null_launch(int64_t number) { return all[number % REMEMBERED]; }

static CUresult refuse(const char *why) {
  refusal = why;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_SUCCESS ? "no error" : refusal;
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)&last;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  *value = 1 << 20;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = 0;
  return ordinal == 0 ? CUDA_SUCCESS : refuse("there is one device");
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return cuCtxGetCurrent(context); }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = MAX_SHARED; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = MAX_SHARED + 1024; break;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 2619000; break;
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 5120; break;
  default: return refuse("a device attribute that the null driver does not know");
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  if (memcmp(image, "\x7f" "ELF", 4)) return refuse("the module is no cubin");
  *module = (CUmodule)malloc(1);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)calloc(1, sizeof(Function));
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? MAX_THREADS : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value > MAX_SHARED) return refuse("more shared memory than a block can have");
  ((Function *)function)->dynamic_shared = value;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  *(CUdeviceptr *)value = pointer;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr pointer) {
  for (unsigned i = 0; i < count; i++) cuPointerGetAttribute(values[i], attributes[i], pointer);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  if ((uintptr_t)address & 15) return refuse("a tensor map of memory that is not aligned to 16 bytes");
  for (unsigned i = 0; i + 1 < rank; i++)
    if (strides[i] & 15) return refuse("a tensor map with a stride that is no multiple of 16 bytes");
  for (unsigned i = 0; i < rank; i++)
    if (box[i] < 1 || box[i] > 256) return refuse("a tensor map with a box of more than 256 elements");
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  const uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
  if (threads < 1 || threads > MAX_THREADS) return refuse("a block of no threads, or of more than 1024");
  if (config->gridDimX < 1 || config->gridDimX > INT32_MAX) return refuse("a grid beyond 2^31 - 1 in x");
  if (config->gridDimY < 1 || config->gridDimY > MAX_GRID_YZ) return refuse("a grid beyond 65535 in y");
  if (config->gridDimZ < 1 || config->gridDimZ > MAX_GRID_YZ) return refuse("a grid beyond 65535 in z");
  const int allowed = ((Function *)function)->dynamic_shared;
  if (config->sharedMemBytes > (unsigned)(allowed > MAX_SHARED_BY_DEFAULT ? allowed : MAX_SHARED_BY_DEFAULT))
    return refuse("more shared memory than the function was allowed");
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const CUlaunchAttribute *a = &config->attrs[i];
    if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
        a->value.clusterDim.x * a->value.clusterDim.y * a->value.clusterDim.z > MAX_CLUSTER)
      return refuse("a cluster of more than 16 blocks");
  }
  last = (Launched){last.launches + 1,
                    {config->gridDimX, config->gridDimY, config->gridDimZ},
                    {config->blockDimX, config->blockDimY, config->blockDimZ},
                    config->sharedMemBytes,
                    function};
  all[(last.launches - 1) % REMEMBERED] = last;
  return CUDA_SUCCESS;
}
