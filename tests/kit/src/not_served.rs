/// Methods of a fake master that nobody calls: each answers that it is not implemented, and `why`.
#[macro_export]
macro_rules! not_served {
    ($why:literal: $($method:ident($request:ident) -> $reply:ident;)*) => {
        $(
            // Written as `async_trait` writes an async method, because it does not look into a macro.
            fn $method<'a, 'b>(
                &'a self,
                _: tonic::Request<v1::$request>,
            ) -> futures::future::BoxFuture<'b, Result<tonic::Response<v1::$reply>, tonic::Status>>
            where
                'a: 'b,
                Self: 'b,
            {
                Box::pin(std::future::ready(Err(tonic::Status::unimplemented($why))))
            }
        )*
    };
}
