// Graphs: work captured from a stream and launched as one.
#include "launch.cuh"

namespace {

__global__ void probe() { pdl_wait(); }

// captures_pdl tries whether a launch with PDL can be captured. A driver before CUDA 12.3 refuses, and
// invalidates the capture.
bool captures_pdl() {
  cudaStream_t s = nullptr;
  if (done(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking))) return false;
  uintptr_t stream = reinterpret_cast<uintptr_t>(s);
  int code = done(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  if (code == cudaSuccess) {
    int first = launch(stream, {1, 32}, probe), second = launch(stream, {1, 32}, probe);
    kernels_value graph = kernels_capture_end(stream);
    int freed = graph.value ? kernels_graph_free(graph.value) : 0;
    code = first ? first : second ? second : graph.code ? graph.code : freed;
  }
  return done(cudaStreamDestroy(s)) == cudaSuccess && code == cudaSuccess;
}

}  // namespace

// The capture is relaxed: another thread may end it, and any thread may call cudaMalloc during it.
int kernels_capture_begin(uintptr_t stream) {
  static const bool pdl = captures_pdl();
  if (!pdl) pdl_off = true;
  return done(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeRelaxed));
}

kernels_value kernels_capture_end(uintptr_t stream) {
  cudaGraph_t graph = nullptr;
  if (int code = done(cudaStreamEndCapture(stream_of(stream), &graph))) return {0, code};
  cudaGraphExec_t exec = nullptr;
  // Without this flag all nodes have the priority of the stream that the graph is launched into.
  int code = done(cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagUseNodePriority));
  int freed = done(cudaGraphDestroy(graph));
  return {reinterpret_cast<uintptr_t>(exec), code ? code : freed};
}

int kernels_graph_launch(uintptr_t graph, uintptr_t stream) {
  return done(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), stream_of(stream)));
}

int kernels_graph_free(uintptr_t graph) { return done(cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph))); }
