//! Bounds on the work of one step. A simulation makes them small, so that a few objects reach them.

/// Returns `usual`.
#[cfg(not(feature = "testing"))]
#[inline]
pub const fn bound<T: Copy>(usual: T, _small: T) -> T {
    usual
}

/// Returns `usual`, or `small` in a program that has called [`use_small_bounds`].
#[cfg(feature = "testing")]
pub fn bound<T: Copy>(usual: T, small: T) -> T {
    if SMALL.load(std::sync::atomic::Ordering::Relaxed) { small } else { usual }
}

#[cfg(feature = "testing")]
static SMALL: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes all bounds of this process small. All masters of a cluster must have the same ones.
#[cfg(feature = "testing")]
pub fn use_small_bounds() {
    SMALL.store(true, std::sync::atomic::Ordering::Relaxed);
}
