//! Memory of NVIDIA GPUs, as far as transfers need it: whether an address lies in it, and copies between it and host memory.
//!
//! CUDA is never started here. A process has device memory only if something in it has loaded `libcuda.so.1` and called `cuInit`; in all
//! others every address is the host's. So the library is used where it is loaded already, and never loaded.

mod driver;
mod stage;

pub use driver::{Cuda, CudaError, Device};
pub use stage::{DeviceCopy, Stage, Towards};
