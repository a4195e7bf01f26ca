// A second device for tests, of torch's PrivateUse1 kind: its memory is the host's, its kernels are the CPU's.
// Like a GPU it refuses an op on tensors of two devices, so that a test sees every input that was not moved.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>
#include <cstring>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize.h>
#include <ATen/ops/view_native.h>

namespace {
constexpr auto kType = c10::DeviceType::PrivateUse1;

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* data = c10::alloc_cpu(n);
    return {data, data, &c10::free_cpu, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }
};
HostAllocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device exchangeDevice(c10::Device) const override { return {kType, 0}; }
  c10::Device getDevice() const override { return {kType, 0}; }
  void synchronizeDevice(c10::DeviceIndex) const override {}
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, {kType, 0}); }
  c10::Stream getNewStream(c10::Device, int = 0) const override { return c10::Stream(c10::Stream::DEFAULT, {kType, 0}); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, {kType, 0}); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};
Hooks hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

at::Tensor empty_on_device(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor& t) {
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(self));
  return to;
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t bytes = (impl->numel() + impl->storage_offset()) * impl->itemsize();
  if (self.storage().nbytes() < bytes) {
    auto grown = allocator.allocate(bytes);
    std::memcpy(grown.get(), self.storage().data(), self.storage().nbytes());
    self.storage().set_data_ptr_noswap(std::move(grown));
    self.storage().set_nbytes(bytes);
  }
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  impl->set_storage_offset(offset.expect_int());
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const c10::SymInt n = static_cast<int64_t>(source.nbytes() / self.itemsize()), one = 1;
  return set_storage(self, std::move(source), 0, {&n, 1}, {&one, 1});
}

at::Scalar local_scalar(const at::Tensor& self) { return on_host(self).item(); }

// Runs an op's CPU kernel on the memory of its arguments, so that whatever it changes in place is changed,
// also running statistics, which its schema does not declare as changed.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases;
  auto alias = [&](const at::Tensor& t) {
    if (!t.defined() || t.device().type() != kType) {
      TORCH_CHECK(!t.defined() || t.dim() == 0, "Expected all tensors to be on the same device, but found one on ",
                  t.device(), " in ", op.schema().name());
      return t;
    }
    // An empty tensor may be a result to resize.
    aliases.emplace_back(t, t.numel() ? on_host(t) : at::empty(t.sizes(), t.options().device(at::kCPU)));
    return aliases.back().second;
  };
  const size_t first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = alias(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> moved;
      for (const at::Tensor& t : value.toTensorVector()) moved.push_back(alias(t));
      value = c10::List<at::Tensor>(moved);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> moved;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
        moved.push_back(t.has_value() ? std::optional<at::Tensor>(alias(*t)) : std::nullopt);
      value = moved;
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    }
  }
  op.callBoxed(stack);
  for (const auto& [original, host] : aliases)
    if (host.numel() != original.numel()) copy_from_and_resize(host, original);
  auto back = [&](const at::Tensor& t) {
    if (!t.defined()) return t;
    for (const auto& [original, host] : aliases) {
      if (host.is_same(t)) return original;
      TORCH_CHECK(!host.is_alias_of(t), op.schema().name(), " returns a view, which this device does not support");
    }
    return t.to(c10::Device(kType, 0));
  };
  for (size_t i = first; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = back(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> moved;
      for (const at::Tensor& t : value.toTensorVector()) moved.push_back(back(t));
      value = c10::List<at::Tensor>(moved);
    }
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) { KERNEL_PRIVATEUSEONE(linear, lower_precision_fp) }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_on_device);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
}
}  // namespace
