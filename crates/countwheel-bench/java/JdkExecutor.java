import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** The executor of the JDK, with so many threads as its first argument says. */
final class JdkExecutor implements Peer {
    private final ScheduledThreadPoolExecutor executor;

    private JdkExecutor(int threads) {
        executor = new ScheduledThreadPoolExecutor(threads, Bench::daemon);
        executor.setRemoveOnCancelPolicy(true);
    }

    @Override
    public Object schedule(long milliseconds, long id) {
        return executor.schedule(() -> Bench.tally(id), milliseconds, TimeUnit.MILLISECONDS);
    }

    @Override
    public Object call(long nanoseconds, Runnable work) {
        return executor.schedule(work, nanoseconds, TimeUnit.NANOSECONDS);
    }

    @Override
    public boolean cancel(Object handle) {
        return ((Future<?>) handle).cancel(false);
    }

    public static void main(String[] arguments) throws Exception {
        Bench.main(new JdkExecutor(Integer.parseInt(arguments[0])), arguments);
    }
}
