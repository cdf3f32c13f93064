import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import java.util.concurrent.TimeUnit;

/** Netty's timer, with a tick of so many milliseconds as its first argument says. */
final class Netty implements Peer {
    private static final int SLOTS = 512;

    private final HashedWheelTimer timer;

    private Netty(long tick) {
        timer = new HashedWheelTimer(Bench::daemon, tick, TimeUnit.MILLISECONDS, SLOTS, false);
    }

    @Override
    public Object schedule(long milliseconds, long id) {
        return timer.newTimeout(timeout -> Bench.tally(id), milliseconds, TimeUnit.MILLISECONDS);
    }

    @Override
    public Object call(long nanoseconds, Runnable work) {
        return timer.newTimeout(timeout -> work.run(), nanoseconds, TimeUnit.NANOSECONDS);
    }

    @Override
    public boolean cancel(Object handle) {
        return ((Timeout) handle).cancel();
    }

    public static void main(String[] arguments) throws Exception {
        Bench.main(new Netty(Long.parseLong(arguments[0])), arguments);
    }
}
