/* libcuda.so.1 without a GPU, of what the runtime calls: device memory is host memory, and kernels
 * are those of an emulated step library (fake_register). Compiled with the real cuda.h, so that the
 * bindings are tried on functions of the real types. */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGS = 4096, MOST_LAUNCHES = 4096 };

typedef struct { uint32_t grid[3], threads, shared_bytes, cluster, flags; } config;
typedef int32_t launch_function(void *, int32_t, const config *, const void *, uint64_t);
typedef struct { int32_t kernel; config shape; char args[MOST_ARGS]; } launch;
struct CUgraph_st { int count; launch *launches; };

static launch_function *run_kernel;
static void *kernel_table;
static const char *(*kernel_name)(int32_t);
static int kernel_count, live_allocations, contexts;
static const uint64_t *kernel_bytes;
static struct CUgraph_st *capturing;
/* What a test may change. */
int fake_devices = 1, fake_version = 13000, fake_sync_error = 0;
int fake_fail_launch = 0; /* 1: always, 2: while a graph is captured */

void fake_register(launch_function *run, void *table, const char *(*name)(int32_t), int count,
                   const uint64_t *bytes) {
  run_kernel = run, kernel_table = table, kernel_name = name, kernel_count = count;
  kernel_bytes = bytes;
}
int fake_live(void) { return live_allocations + contexts; }

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : fake_devices ? 0 : 100; }
CUresult cuDriverGetVersion(int *version) { return *version = fake_version, 0; }
CUresult cuDeviceGetCount(int *count) { return *count = fake_devices, 0; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, 0; }
CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
  return snprintf(name, len, "Fake %d", dev), 0;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev) {
  (void)dev;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return *value = 8, 0;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return *value = 6, 0;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return *value = 4, 0;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return *value = 99 << 10, 0;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice dev) {
  return contexts++, *context = (CUcontext)(intptr_t)(0x100 + dev), 0;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return (void)dev, contexts--, 0; }
CUresult cuCtxSetCurrent(CUcontext context) { return context ? 0 : CUDA_ERROR_INVALID_CONTEXT; }
CUresult cuMemGetInfo(size_t *free, size_t *total) {
  return *free = (size_t)1 << 29, *total = (size_t)2 << 30, 0;
}
CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes) {
  if (bytes > (size_t)1 << 29) return CUDA_ERROR_OUT_OF_MEMORY;
  void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(memory, 0xA5, bytes);
  return live_allocations++, *pointer = (CUdeviceptr)memory, 0;
}
CUresult cuMemFree(CUdeviceptr pointer) { return live_allocations--, free((void *)pointer), 0; }
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  return live_allocations++, *pointer = malloc(bytes), flags == CU_MEMHOSTALLOC_PORTABLE ? 0 : 1;
}
CUresult cuMemFreeHost(void *pointer) { return live_allocations--, free(pointer), 0; }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return memset((void *)to, value, count), stream ? 0 : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  return memcpy((void *)to, from, bytes), stream ? 0 : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return memcpy(to, (void *)from, bytes), stream ? 0 : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return memcpy((void *)to, (void *)from, bytes), stream ? 0 : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  return live_allocations++, *stream = (CUstream)0x200, flags == CU_STREAM_NON_BLOCKING ? 0 : 1;
}
CUresult cuStreamDestroy(CUstream stream) { return (void)stream, live_allocations--, 0; }
CUresult cuStreamSynchronize(CUstream stream) {
  return stream ? (CUresult)fake_sync_error : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuEventCreate(CUevent *event, unsigned flags) {
  int known = flags == CU_EVENT_DISABLE_TIMING || flags == CU_EVENT_DEFAULT;
  return live_allocations++, *event = (CUevent)0x300, known ? 0 : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuEventRecord(CUevent event, CUstream stream) { return event && stream ? 0 : 1; }
CUresult cuEventSynchronize(CUevent event) { return event ? 0 : 1; }
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  return *ms = 2, start && end ? 0 : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuEventDestroy(CUevent event) { return (void)event, live_allocations--, 0; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  if (memcmp(image, "cubin", 5)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  return live_allocations++, *module = (CUmodule)image, 0;
}
CUresult cuModuleUnload(CUmodule module) { return (void)module, live_allocations--, 0; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  for (int i = 0; i < kernel_count; i++)
    if (module && !strcmp(kernel_name(i), name)) return *function = (CUfunction)(intptr_t)(i + 1), 0;
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuFuncLoad(CUfunction function) { return function ? 0 : CUDA_ERROR_INVALID_HANDLE; }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  return *value = 1 << 10, attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES && function ? 0 : 1;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  int right = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value == 98 << 10;
  return function && right ? 0 : CUDA_ERROR_INVALID_VALUE;
}

static CUresult run(const launch *l) {
  return run_kernel(kernel_table, l->kernel, &l->shape, l->args, kernel_bytes[l->kernel])
             ? CUDA_ERROR_LAUNCH_FAILED : 0;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **extra) {
  int fails = fake_fail_launch == 1 || (fake_fail_launch == 2 && capturing);
  if (fails || extra || !c->hStream) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  launch l = {.kernel = (int32_t)(intptr_t)function - 1,
              .shape = {{c->gridDimX, c->gridDimY, c->gridDimZ}, c->blockDimX, c->sharedMemBytes,
                        c->numAttrs ? c->attrs[0].value.clusterDim.x : 1, 0}};
  memcpy(l.args, params[0], kernel_bytes[l.kernel]);
  if (!capturing) return run(&l);
  capturing->launches[capturing->count++] = l;
  return 0;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  if (!stream || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) return CUDA_ERROR_INVALID_VALUE;
  capturing = malloc(sizeof *capturing);
  capturing->count = 0, capturing->launches = malloc(sizeof(launch) * MOST_LAUNCHES);
  return live_allocations++, 0;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  return *graph = capturing, capturing = NULL, stream ? 0 : 1;
}
CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
  struct CUgraph_st *copy = malloc(sizeof *copy);
  *copy = *graph, graph->launches = NULL;
  return live_allocations++, *executable = (CUgraphExec)copy, flags ? 1 : 0;
}
CUresult cuGraphDestroy(CUgraph graph) { return live_allocations--, free(graph->launches), free(graph), 0; }
CUresult cuGraphExecDestroy(CUgraphExec executable) {
  struct CUgraph_st *graph = (struct CUgraph_st *)executable;
  return live_allocations--, free(graph->launches), free(graph), 0;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  const struct CUgraph_st *graph = (struct CUgraph_st *)executable;
  CUresult result = stream ? 0 : CUDA_ERROR_INVALID_HANDLE;
  for (int i = 0; i < graph->count && !result; i++) result = run(&graph->launches[i]);
  return result;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
  return *text = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
                                                     : "some text", 0;
}

#define ENTRY(name) {#name, (void *)name}
static const struct { const char *name; void *function; } entries[] = {
    ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet),
    ENTRY(cuDeviceGetName), ENTRY(cuDeviceGetAttribute), ENTRY(cuDevicePrimaryCtxRetain),
    {"cuDevicePrimaryCtxRelease", (void *)cuDevicePrimaryCtxRelease}, ENTRY(cuCtxSetCurrent),
    {"cuMemGetInfo", (void *)cuMemGetInfo}, {"cuMemAlloc", (void *)cuMemAlloc},
    {"cuMemFree", (void *)cuMemFree}, ENTRY(cuMemHostAlloc), ENTRY(cuMemFreeHost),
    {"cuMemsetD8Async", (void *)cuMemsetD8Async}, {"cuMemcpyHtoDAsync", (void *)cuMemcpyHtoDAsync},
    {"cuMemcpyDtoHAsync", (void *)cuMemcpyDtoHAsync}, ENTRY(cuStreamCreate),
    {"cuMemcpyDtoDAsync", (void *)cuMemcpyDtoDAsync}, ENTRY(cuEventElapsedTime),
    {"cuStreamDestroy", (void *)cuStreamDestroy}, {"cuStreamSynchronize", (void *)cuStreamSynchronize},
    ENTRY(cuEventCreate), {"cuEventRecord", (void *)cuEventRecord}, ENTRY(cuEventSynchronize),
    {"cuEventDestroy", (void *)cuEventDestroy}, ENTRY(cuModuleLoadData), ENTRY(cuModuleUnload),
    ENTRY(cuModuleGetFunction), ENTRY(cuFuncLoad), ENTRY(cuFuncGetAttribute), ENTRY(cuFuncSetAttribute),
    {"cuLaunchKernelEx", (void *)cuLaunchKernelEx},
    {"cuStreamBeginCapture", (void *)cuStreamBeginCapture},
    {"cuStreamEndCapture", (void *)cuStreamEndCapture},
    {"cuGraphInstantiate", (void *)cuGraphInstantiate},
    {"cuGraphInstantiateWithFlags", (void *)cuGraphInstantiate}, ENTRY(cuGraphDestroy),
    ENTRY(cuGraphExecDestroy), {"cuGraphLaunch", (void *)cuGraphLaunch}, ENTRY(cuGetErrorString),
};

#undef cuGetProcAddress
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  (void)version, (void)flags;
  *function = NULL;
  if (!strcmp(symbol, "cuGetProcAddress")) *function = (void *)cuGetProcAddress_v2;
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
    if (!strcmp(entries[i].name, symbol)) *function = entries[i].function;
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? 0 : CUDA_ERROR_NOT_FOUND;
}
